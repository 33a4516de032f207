package api

import (
	"net/http"

	"signalbox/appliance/agent"
)

// keyPublic is an API key without the key.
type keyPublic struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Prefix     string     `json:"prefix"`
	Role       agent.Role `json:"role"`
	Scopes     []string   `json:"scopes"`
	ProjectID  *string    `json:"project_id"`
	CreatedAt  stamp      `json:"created_at"`
	ExpiresAt  *stamp     `json:"expires_at"`
	LastUsedAt *stamp     `json:"last_used_at"`
}

func showKey(k *agent.APIKey) keyPublic {
	out := keyPublic{ID: k.ID.String(), Name: k.Name, Prefix: k.Prefix, Role: k.Role, Scopes: texts(k.Scopes),
		CreatedAt: stamp(k.CreatedAt), ExpiresAt: maybe(k.ExpiresAt), LastUsedAt: maybe(k.LastUsedAt)}
	if k.ProjectID != nil {
		id := k.ProjectID.String()
		out.ProjectID = &id
	}
	return out
}

func (a *API) listKeys(w http.ResponseWriter, c *call) error {
	keys, err := a.Directory.ListAPIKeys(c.Context(), c.who)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(keys, showKey))
}

// maxScopes bounds what is read of scopes; the Directory has the rule.
const maxScopes = 1000

// createKey answers with the key itself, this once.
func (a *API) createKey(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	n := agent.NewAPIKey{Name: b.required("name"), Role: agent.Role(orEmpty(b.text("role"))),
		Scopes: b.texts("scopes", maxScopes), ProjectID: b.id("project_id"), ExpiresInDays: b.int("expires_in_days")}
	if !b.has("role") { // as agent protocol H.7 has it: the key acts as its maker, held to its scopes
		n.Role = c.who.Role
		if len(n.Scopes) == 0 {
			b.bad("role", "is required without scopes")
		}
	}
	if err := b.err(); err != nil {
		return err
	}
	k, text, err := a.Directory.CreateAPIKey(c.Context(), c.who, n)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, struct {
		keyPublic
		Token string `json:"token"`
	}{showKey(&k), text.Reveal()})
}

func (a *API) listScopes(w http.ResponseWriter, c *call) error {
	return reply(w, c, http.StatusOK, agent.AllScopes())
}

func (a *API) revokeKey(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if err := a.Directory.RevokeAPIKey(c.Context(), c.who, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
