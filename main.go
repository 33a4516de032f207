// Signalbox is one binary that durable work and long-lived peers meet in. See README.md.
package main

import (
	"context"
	_ "embed"
	"os"

	"signalbox/commands"
)

//go:embed schema.sql
var schema string

//go:embed config.example.toml
var exampleConfig string

// version is stamped by the build; a plain `go build` leaves it empty and the build info speaks instead.
var version string

func main() {
	assets := commands.Assets{Schema: schema, ExampleConfig: exampleConfig, Version: version}
	os.Exit(commands.Execute(context.Background(), os.Args[1:], commands.SystemStdio(), assets))
}
