package agent

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

const (
	maxKeyDays = 3650 // agent protocol H.7
	// keyPrefixLen is how much of a key is kept for people to recognise it: the common start and 6 of 43 characters.
	keyPrefixLen = len(secret.APIKeyPrefix) + 6
	minKeyLen    = 32 // of a key that was not made here
)

// NewAPIKey asks for an API key.
type NewAPIKey struct {
	Name          string
	Role          Role
	Scopes        []string   // empty: DefaultScopes of the role
	ProjectID     *uuid.UUID // nil: every project
	ExpiresInDays *int       // nil: never
}

func (n *NewAPIKey) validate() error {
	if err := checkLabel("name", n.Name); err != nil {
		return err
	}
	if n.Role.rank() == 0 {
		return fault.Field("role", "must be viewer, operator, admin or auditor")
	}
	if n.ExpiresInDays != nil && (*n.ExpiresInDays < 1 || *n.ExpiresInDays > maxKeyDays) {
		return fault.Field("expires_in_days", "must be 1..%d", maxKeyDays)
	}
	return checkScopes(n.Scopes)
}

// CreateAPIKey makes a key and returns it with its text, which exists only here. Invalid for a bad field or an unknown
// project, Forbidden when the key would have more than its maker.
func (d *Directory) CreateAPIKey(ctx context.Context, who Principal, n NewAPIKey) (APIKey, secret.Text, error) {
	if err := n.validate(); err != nil {
		return APIKey{}, secret.Text{}, err
	}
	scopes := slices.Clone(n.Scopes)
	if len(scopes) == 0 {
		scopes = DefaultScopes(n.Role)
	}
	slices.Sort(scopes)
	n.Scopes = slices.Compact(scopes)
	if err := mayGrant(who, n.Role, n.Scopes, n.ProjectID); err != nil {
		return APIKey{}, secret.Text{}, err
	}
	text := secret.NewAPIKey()
	k, hash, err := d.keyRecord(n, text, who.ID)
	if err != nil {
		return APIKey{}, secret.Text{}, err
	}
	err = d.st.Update(ctx, "create api key", func(tx DirectoryTx) error { return d.storeKey(tx, who, &k, n, hash) })
	if err != nil {
		return APIKey{}, secret.Text{}, err
	}
	return k, text, nil
}

// keyRecord makes the record of a key and the hash that proves it.
func (d *Directory) keyRecord(n NewAPIKey, text secret.Text, by string) (APIKey, string, error) {
	id, err := newID()
	if err != nil {
		return APIKey{}, "", err
	}
	k := APIKey{ID: id, Name: n.Name, Prefix: text.Reveal()[:keyPrefixLen], Role: n.Role, Scopes: n.Scopes,
		ProjectID: n.ProjectID, CreatedBy: by}
	return k, secret.APIKeyHash(d.secrets.Current.Reveal(), text.Reveal()), nil
}

func (d *Directory) storeKey(tx DirectoryTx, who Principal, k *APIKey, n NewAPIKey, hash string) error {
	k.CreatedAt, k.ExpiresAt = tx.Now(), nil
	if n.ExpiresInDays != nil {
		at := k.CreatedAt.Add(time.Duration(*n.ExpiresInDays) * 24 * time.Hour)
		k.ExpiresAt = &at
	}
	var project int64
	meta := map[string]any{"name": k.Name, "prefix": k.Prefix, "role": k.Role, "scopes": k.Scopes}
	if k.ProjectID != nil {
		p, err := tx.ProjectByID(*k.ProjectID)
		if fault.Is(err, fault.NotFound) || err == nil && !p.IsActive {
			return fault.Field("project_id", "must be the id of an active project")
		}
		if err != nil {
			return err
		}
		project = p.No
		meta["project_id"] = p.ID.String()
	}
	if err := tx.InsertAPIKey(*k, hash); err != nil {
		return err
	}
	return d.record(tx, who, "api_key.created", project, "api_key", k.ID.String(), meta)
}

// ListAPIKeys returns the keys that are not revoked, by name: all of them, or those of the project that the principal is
// bound to.
func (d *Directory) ListAPIKeys(ctx context.Context, who Principal) ([]APIKey, error) {
	var out []APIKey
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		out, err = tx.APIKeys(who.ProjectID)
		return err
	})
	return out, err
}

// RevokeAPIKey ends a key for good. Revoking it again changes nothing. NotFound for a key that does not exist or, to a
// principal bound to a project, belongs elsewhere.
func (d *Directory) RevokeAPIKey(ctx context.Context, who Principal, id uuid.UUID) error {
	return d.st.Update(ctx, "revoke api key", func(tx DirectoryTx) error {
		k, err := tx.APIKeyByID(id)
		if err != nil {
			return named(err, "API key")
		}
		if who.ProjectID != nil && (k.ProjectID == nil || *k.ProjectID != *who.ProjectID) {
			return fault.New(fault.NotFound, "API key not found")
		}
		live, err := tx.RevokeAPIKey(id)
		if err != nil || !live {
			return err
		}
		var project int64
		if k.ProjectID != nil {
			p, err := tx.ProjectByID(*k.ProjectID)
			if err != nil {
				return err
			}
			project = p.No
		}
		meta := map[string]any{"name": k.Name, "prefix": k.Prefix}
		return d.record(tx, who, "api_key.revoked", project, "api_key", id.String(), meta)
	})
}

// HasNoAPIKey tells whether the database never had a key: then the appliance starts for the first time.
func (d *Directory) HasNoAPIKey(ctx context.Context) (bool, error) {
	var any bool
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		any, err = tx.AnyAPIKey()
		return err
	})
	return !any && err == nil, err
}

// EnsureAdminKey stores the given text as the first API key, an admin's without an end, unless the database ever had a
// key. The caller has put the text where its operator finds it before: a crash in between loses nothing. Invalid for a
// text that is no API key.
func (d *Directory) EnsureAdminKey(ctx context.Context, text secret.Text) error {
	if key := text.Reveal(); !strings.HasPrefix(key, secret.APIKeyPrefix) || len(key) < minKeyLen || len(key) > maxCredential ||
		strings.ContainsFunc(key, unicode.IsSpace) {
		return fault.Field("admin key", "must start with %s and have %d..%d characters without spaces", secret.APIKeyPrefix,
			minKeyLen, maxCredential)
	}
	n := NewAPIKey{Name: "admin", Role: Admin, Scopes: DefaultScopes(Admin)}
	k, hash, err := d.keyRecord(n, text, "first start")
	if err != nil {
		return err
	}
	return d.st.Update(ctx, "create first api key", func(tx DirectoryTx) error {
		if any, err := tx.AnyAPIKey(); err != nil || any {
			return err
		}
		return d.storeKey(tx, Principal{}, &k, n, hash)
	})
}
