package agent

import (
	"context"
	"strings"
	"time"
	"unicode"

	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

// maxCredential bounds what is hashed for a stranger. Ours have 43 and 47 characters.
const maxCredential = 512

// lastUsedEvery is how often the last use of an API key is written down.
const lastUsedEvery = time.Minute

// Identity is who an agent's token proves.
type Identity struct {
	Project Project
	Agent   Agent
}

// ParseBearer takes the credential out of an Authorization header (agent protocol A.2).
func ParseBearer(header string) (credential string, ok bool) {
	header = strings.TrimSpace(header)
	i := strings.IndexFunc(header, unicode.IsSpace)
	if i < 0 || !strings.EqualFold(header[:i], "bearer") {
		return "", false
	}
	credential = strings.TrimLeftFunc(header[i:], unicode.IsSpace)
	return credential, credential != "" && len(credential) <= maxCredential
}

// Authenticate finds the live agent that an Authorization header proves, under the current secret and then the previous
// ones. It costs one indexed read per secret tried. Unauthenticated when there is none; ProjectInactive, with the
// identity, when its project is archived.
func (d *Directory) Authenticate(ctx context.Context, authorizationHeader string) (Identity, error) {
	token, ok := ParseBearer(authorizationHeader)
	if !ok {
		return Identity{}, invalidToken()
	}
	var id Identity
	found := false
	err := d.st.View(ctx, func(tx DirectoryReadTx) error {
		return d.secrets.each(func(master secret.Bytes) (bool, error) {
			a, p, err := tx.AgentByTokenHash(secret.TokenHash(master.Reveal(), token))
			if fault.Is(err, fault.NotFound) {
				return false, nil
			}
			id, found = Identity{Project: p, Agent: a}, err == nil
			return found, err
		})
	})
	switch {
	case err != nil:
		return Identity{}, err
	case !found:
		return Identity{}, invalidToken()
	case !id.Project.IsActive:
		return id, projectInactive(AgentAccess{ID: id.Agent.ID, ProjectID: id.Project.ID})
	}
	return id, nil
}

// CheckAlive reads whether an authenticated agent may still take part: Unauthenticated when it was revoked,
// ProjectInactive when its project was archived.
func (d *Directory) CheckAlive(ctx context.Context, agentNo int64) error {
	return d.st.View(ctx, func(tx DirectoryReadTx) error { return checkAccess(tx, agentNo) })
}

func checkAccess(tx DirectoryReadTx, agentNo int64) error {
	a, err := tx.AgentAccess(agentNo)
	switch {
	case fault.Is(err, fault.NotFound):
		return invalidToken()
	case err != nil:
		return err
	case a.Revoked:
		return invalidToken()
	case !a.ProjectActive:
		return projectInactive(a)
	}
	return nil
}

func invalidToken() error { return fault.New(fault.Unauthenticated, "invalid agent token") }

func projectInactive(a AgentAccess) error {
	return fault.New(fault.ProjectInactive, "project is not active").
		With("project_id", a.ProjectID.String()).With("agent_id", a.ID.String())
}

// AuthenticateAPIKey finds the principal that an Authorization header proves, under the current secret and then the
// previous ones. Unauthenticated when the key is unknown, expired or revoked. The last use is written down at most once
// a minute; failing to write it does not refuse the caller.
func (d *Directory) AuthenticateAPIKey(ctx context.Context, authorizationHeader string) (Principal, error) {
	text, ok := ParseBearer(authorizationHeader)
	if !ok || !strings.HasPrefix(text, secret.APIKeyPrefix) {
		return Principal{}, invalidKey()
	}
	var k APIKey
	var now time.Time
	found := false
	err := d.st.View(ctx, func(tx DirectoryReadTx) error {
		now = tx.Now()
		return d.secrets.each(func(master secret.Bytes) (bool, error) {
			hash := secret.APIKeyHash(master.Reveal(), text)
			got, stored, err := tx.APIKeyByHash(hash)
			if fault.Is(err, fault.NotFound) {
				return false, nil
			}
			k, found = got, err == nil && secret.Equal(stored, hash)
			return found, err
		})
	})
	if err != nil {
		return Principal{}, err
	}
	if !found || k.RevokedAt != nil || k.ExpiresAt != nil && !now.Before(*k.ExpiresAt) {
		return Principal{}, invalidKey()
	}
	if stale := now.Add(-lastUsedEvery); k.LastUsedAt == nil || !k.LastUsedAt.After(stale) {
		err := d.st.Update(ctx, "touch api key", func(tx DirectoryTx) error { return tx.TouchAPIKey(k.ID, stale) })
		if err != nil {
			d.opts.Trouble("touch api key", err)
		}
	}
	return Principal{Kind: "api_key", ID: k.ID.String(), Name: k.Name, Role: k.Role, Scopes: k.Scopes,
		ProjectID: k.ProjectID}, nil
}

func invalidKey() error { return fault.New(fault.Unauthenticated, "invalid API key") }
