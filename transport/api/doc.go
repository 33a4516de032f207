// Package api is the REST surface for operators (agent protocol E.9, H) with Signalbox's own additions.
//
// One table (routes.go) says of every route who may use it, what it takes and what it answers; it drives the mux, the
// check of rights, a test of every role and scope, and docs/api.md. Handlers hold no rules: they read a request, call one
// domain service and write its answer. Stored JSON passes through as the bytes it is.
//
// On the way in: the address allowlist, the credential, the project, the right, the bulk bucket, the handler. The local
// admin socket skips the first two.
package api
