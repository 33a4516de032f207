package commands

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionDoc struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this binary",
		Example: `  signalbox version
  signalbox version --json`,
		RunE: func(*cobra.Command, []string) error { return opts.showVersion() },
	}
}

func (o *options) showVersion() error {
	doc := readVersion(o.assets.Version)
	if o.json {
		return o.out.document(
			field{"version", doc.Version}, field{"revision", doc.Revision},
			field{"go", doc.Go}, field{"platform", doc.Platform})
	}
	o.out.text("signalbox %s (%s, %s)", doc.Version, doc.Go, doc.Platform)
	return nil
}

// readVersion takes the stamped version, else what the Go tool recorded about the build.
func readVersion(stamped string) versionDoc {
	doc := versionDoc{Version: stamped, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				doc.Revision = s.Value
			}
		}
		if doc.Version == "" && info.Main.Version != "(devel)" {
			doc.Version = info.Main.Version
		}
	}
	if doc.Version == "" {
		doc.Version = "dev"
	}
	return doc
}
