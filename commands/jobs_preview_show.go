package commands

import (
	"net/url"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func newJobsPreviewShowCommand(opts *options) *cobra.Command {
	var f filters
	cmd := &cobra.Command{
		Use:   "show PREVIEW",
		Short: "Show a preview that was made before, with what it says of every file",
		Long: `Show a preview that was made before, with what it says of every file. Nobody is asked: it shows what was found out when the preview
was made, also for a job that was started from it. A preview is named by its whole id: jobs preview and jobs show tell it. One that
no job was made of is kept for 30 days.`,
		Example: `  signalbox jobs preview show 8e3de780-fab3-41f0-ace4-82794e6d850b
  signalbox jobs preview show 8e3de780-fab3-41f0-ace4-82794e6d850b --limit 500 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			id, err := uuid.Parse(args[0])
			if err != nil {
				return usagef("PREVIEW: %q is not the whole id of a preview; `jobs show` tells the one of a job", args[0])
			}
			ctx := cmd.Context()
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			var v record[previewRow]
			if err := c.get(ctx, roomPath("job-previews", id.String()), nil, &v); err != nil {
				return err
			}
			query := url.Values{}
			setNonEmpty(query, "cursor", f.cursor)
			files, next, err := list[plannedFile](ctx, c, roomPath("job-previews", id.String(), "files"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"preview", v}, field{"files", files}, field{"next_cursor", next})
			}
			if len(files) > 0 {
				if err := opts.plannedTable(files); err != nil {
					return err
				}
				opts.out.text("")
			}
			head := [][2]string{{"preview", v.V.ID}, {"operation", v.V.Operation}, {"state", v.V.State}, {"made", opts.out.when(v.V.CreatedAt)},
				{"job", text(v.V.JobID)}, {"error", v.V.Error.String()}}
			if err := opts.previewFacts(head, &v.V); err != nil {
				return err
			}
			if next != nil {
				opts.out.say("there are more files; --cursor %s goes on after these, --limit shows more at once", *next)
			}
			return nil
		},
	}
	f.addLimit(cmd)
	f.addCursor(cmd, "go on after this cursor of an earlier list: the index of a file")
	return cmd
}
