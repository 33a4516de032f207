package room

import (
	"time"

	"github.com/google/uuid"
)

// ActorKind says what kind of participant somebody is.
type ActorKind string

// The kinds of participants.
const (
	KindAgent    ActorKind = "agent"
	KindPerson   ActorKind = "person"
	KindPlatform ActorKind = "platform" // the server itself
)

// Actor is whoever does something: an agent with its own key, or a person. The rights of an agent are those of its
// owner; an agent without one reaches only what is public (A.6).
type Actor struct {
	Kind    ActorKind
	No      int64 // room_agent_no or person_no; 0 for the platform
	ID      uuid.UUID
	Name    string
	OwnerNo int64 // whose rights it has: the agent's owner, the person itself; 0: nobody's
	Admin   bool  // those rights are an admin's (A.6)
}

// Platform is the server itself.
func Platform() Actor { return Actor{Kind: KindPlatform, Name: "signalbox", Admin: true} }

// ParticipantID is the actor's opaque, stable id on the wire: a UUID.
func (a Actor) ParticipantID() string {
	if a.Kind == KindPlatform {
		return "signalbox"
	}
	return a.ID.String()
}

// PersonKind sets apart the two people the server makes itself.
type PersonKind string

// The kinds of people.
const (
	PersonOrdinary  PersonKind = "person"
	PersonOperator  PersonKind = "operator"
	PersonBootstrap PersonKind = "bootstrap"
)

// Role of a person (A.6).
type Role string

// The roles.
const (
	RoleUser  Role = "user"
	RoleAdmin Role = "admin"
)

// Person is somebody who signs in, speaks in rooms, owns agents.
type Person struct {
	No          int64
	ID          uuid.UUID
	Kind        PersonKind
	Name, Email string
	Role        Role
	HasPassword bool
	DisabledAt  *time.Time
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// Actor is the person as whoever does something.
func (p Person) Actor() Actor {
	return Actor{Kind: KindPerson, No: p.No, ID: p.ID, Name: p.Name, OwnerNo: p.No, Admin: p.Role == RoleAdmin}
}
