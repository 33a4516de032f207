// Package migrations holds the numbered scripts that bring an older database to the current schema. A script is named
// NNNN_what_it_does.sql after the version it leads to, starts at 0002, and is never edited once released. schema.sql
// is changed together with it: after migrating, the live schema is compared with schema.sql.
package migrations

import "embed"

// FS holds the scripts at its root.
//
//go:embed *
var FS embed.FS
