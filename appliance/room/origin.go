package room

import "context"

// Origin is where a request came from, for the audit log.
type Origin struct {
	Principal string // credential that acts for a person, such as the id of an API key; "": the actor itself
	SourceIP  string
	UserAgent string
}

type originKey struct{}

// WithOrigin returns a context that carries the origin of a request down to the audit rows it leaves.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the origin that the context carries, or the zero Origin.
func OriginOf(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}
