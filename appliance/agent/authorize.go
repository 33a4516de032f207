package agent

import (
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// scopeAll is the scope that implies every other.
const scopeAll = "admin:*"

// maxScopes bounds the scopes of one key (agent protocol H.7).
const maxScopes = 64

// scopeResources are the resources that scopes speak of (agent protocol H.1), rooms and the archive plane.
var scopeResources = []string{"auth", "home", "projects", "tasks", "workers", "queues", "agents", "commands",
	"schedules", "audit", "memberships", "notifications", "users", "rooms", "archive"}

// resourceAliases are resources whose access goes with another one's scope (agent protocol H.1).
var resourceAliases = map[string]string{"events": "tasks", "stats": "tasks", "dead-letters": "tasks",
	"failures": "tasks"}

// AllScopes lists every scope that an API key can have.
func AllScopes() []string {
	out := make([]string, 0, 2*len(scopeResources)+1)
	for _, r := range scopeResources {
		out = append(out, r+":read", r+":write")
	}
	return append(out, scopeAll)
}

// DefaultScopes are the scopes of a key that asks for none: what its role is for. nil for an unknown role.
func DefaultScopes(r Role) []string {
	read := []string{"home:read", "projects:read", "tasks:read", "workers:read", "queues:read", "agents:read",
		"commands:read", "schedules:read", "rooms:read", "archive:read", "notifications:read"}
	switch r {
	case Viewer:
		return read
	case Operator:
		return append(read, "tasks:write", "workers:write", "queues:write", "commands:write", "schedules:write", "rooms:write",
			"archive:write", "notifications:write")
	case Auditor:
		return append(read, "audit:read")
	case Admin:
		return []string{scopeAll}
	}
	return nil
}

// rank orders the roles that act; 0 is no such role. The auditor acts as a viewer.
func (r Role) rank() int {
	switch r {
	case Viewer, Auditor:
		return 1
	case Operator:
		return 2
	case Admin:
		return 3
	}
	return 0
}

// atLeast tells whether role r may do what needs role need. Only an admin and an auditor are as good as an auditor.
func (r Role) atLeast(need Role) bool {
	if need == Auditor {
		return r == Auditor || r == Admin
	}
	return need.rank() > 0 && r.rank() >= need.rank()
}

// hasScope tells whether the scopes grant access to the resource: write implies read, admin:* implies all.
func hasScope(scopes []string, resource string, write bool) bool {
	if alias, ok := resourceAliases[resource]; ok {
		resource = alias
	}
	if slices.Contains(scopes, scopeAll) || slices.Contains(scopes, resource+":write") {
		return true
	}
	return !write && slices.Contains(scopes, resource+":read")
}

// Authorize decides whether a principal may read or write a resource (agent protocol H.1). project is the project acted
// in; nil is an act on all of them, which a principal bound to a project may not do. A write needs an operator even
// where minRole says less: viewers and auditors only read. The error is Forbidden and says what is missing.
func Authorize(who Principal, resource string, write bool, minRole Role, project *uuid.UUID) error {
	switch {
	case who.ProjectID != nil && project == nil:
		return fault.New(fault.Forbidden, "this credential is bound to one project")
	case who.ProjectID != nil && *who.ProjectID != *project:
		return fault.New(fault.Forbidden, "this credential is bound to another project")
	case !hasScope(who.Scopes, resource, write):
		verb := "read"
		if write {
			verb = "write"
		}
		return fault.New(fault.Forbidden, "this needs the scope %s:%s", scopeResource(resource), verb)
	case !who.Role.atLeast(minRole):
		return fault.New(fault.Forbidden, "this needs the role %s", minRole)
	case write && !who.Role.atLeast(Operator):
		return fault.New(fault.Forbidden, "this needs the role %s", Operator)
	}
	return nil
}

func scopeResource(resource string) string {
	if alias, ok := resourceAliases[resource]; ok {
		return alias
	}
	return resource
}

// LocalPrincipal is who speaks on the unix socket: the machine's own administrator.
func LocalPrincipal() Principal {
	return Principal{Kind: "local", ID: "local", Name: "local", Role: Admin, Scopes: []string{scopeAll}}
}

// checkScopes checks the scopes of a new key.
func checkScopes(scopes []string) error {
	if len(scopes) > maxScopes {
		return fault.Field("scopes", "must have at most %d entries", maxScopes)
	}
	for _, s := range scopes {
		resource, verb, ok := strings.Cut(s, ":")
		if s != scopeAll && (!ok || verb != "read" && verb != "write" || !slices.Contains(scopeResources, resource)) {
			return fault.Field("scopes", "each must be <resource>:read, <resource>:write or %s, with a resource of %s",
				scopeAll, strings.Join(scopeResources, ", "))
		}
	}
	return nil
}

// mayGrant tells whether a principal may give a key what it asks for: nobody gives more than they have.
func mayGrant(who Principal, role Role, scopes []string, project *uuid.UUID) error {
	switch {
	case who.ProjectID != nil && (project == nil || *project != *who.ProjectID):
		return fault.New(fault.Forbidden, "project_id: a key bound to one project makes keys for that project only")
	case !who.Role.atLeast(role):
		return fault.New(fault.Forbidden, "role: you cannot give more than your own role %s", who.Role)
	}
	for _, s := range scopes {
		resource, verb, _ := strings.Cut(s, ":")
		if s == scopeAll && !slices.Contains(who.Scopes, scopeAll) || !hasScope(who.Scopes, resource, verb == "write") {
			return fault.New(fault.Forbidden, "scopes: you cannot give %s, which you do not have", s)
		}
	}
	return nil
}
