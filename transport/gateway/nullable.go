package gateway

import "encoding/json"

// nullable is a text of a body that tells null, which empties it, from its absence.
type nullable struct {
	given bool
	text  string
}

// UnmarshalJSON takes a text or null.
func (n *nullable) UnmarshalJSON(b []byte) error {
	n.given, n.text = true, ""
	if string(b) == "null" {
		return nil
	}
	return json.Unmarshal(b, &n.text)
}
