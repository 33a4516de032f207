package room

import (
	"strings"

	"signalbox/appliance/fault"
)

// maxName is the longest name of an agent, an alias, a role, a room or a person, in characters.
const maxName = 200

// ValidName checks the name of a new agent (A.3); field is what the error calls it.
func ValidName(field, name string) error {
	if len(name) == 0 || len(name) > maxName {
		return fault.Field(field, "must have 1 to %d characters", maxName)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return fault.Field(field, "must match [a-z0-9][a-z0-9._-]*")
		}
	}
	if name == EveryoneName {
		return fault.Field(field, "%s is the mention of the whole room and no agent may be called so", EveryoneName)
	}
	return nil
}

// ValidAlias checks the form of an alias (H.6); that it is free in the room is another matter.
func ValidAlias(field, alias string) error {
	if len(alias) == 0 || len(alias) > maxName {
		return fault.Field(field, "must have 1 to %d characters", maxName)
	}
	for i := range len(alias) {
		if !isNameByte(alias[i]) {
			return fault.Field(field, "must match [A-Za-z0-9._-]+")
		}
	}
	if strings.EqualFold(alias, EveryoneName) {
		return fault.Field(field, "%s is the mention of the whole room and cannot be an alias", EveryoneName)
	}
	return nil
}
