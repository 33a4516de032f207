package appliance_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/roomclient"
)

// What the rooms plane takes fits through the caps of the listeners too: a message and a document of the largest size
// (K). What is larger is refused by the caps, and other planes keep theirs.
func TestRoomsTakeLargeBodies(t *testing.T) {
	t.Parallel()
	s := appliancetest.Start(t)
	ctx := limit(t)
	a := s.RoomAgent("writer")
	id := s.Room("plaza", a)
	largest := strings.Repeat("ü\"", 256<<10/3) // JSON makes two thirds more of it
	agent := "/agents/" + a.AgentID.String()
	if err := a.Do(ctx, "POST", agent+"/message", map[string]string{"room_id": id.String(), "content": largest}, nil, nil); err != nil {
		t.Errorf("a message of an agent: %.200v", err)
	}
	if _, err := s.Say(id, largest); err != nil {
		t.Errorf("a message of the operator: %.200v", err)
	}
	s.Do("PATCH", "/rooms/"+id.String(), map[string]string{"instructions": strings.Repeat("i", 60_000)}, http.StatusOK, nil)
	st, err := roomclient.Dial(ctx, &a, roomclient.Current(uuid.NewString()))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Drop()
	state, err := st.AwaitState(ctx)
	if err != nil {
		t.Fatal(err)
	}
	who := roomclient.Caller{ConnectionID: state.ConnectionID}
	if err := a.Op(ctx, who, "connect_to_room", map[string]string{"room_id": id.String()}, nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Op(ctx, who, "create_room_document", map[string]string{"name": "d", "content": strings.Repeat("\n", 1<<20)}, nil); err != nil {
		t.Errorf("a document: %.200v", err)
	}
	var refused *roomclient.StatusError
	err = a.Do(ctx, "POST", agent+"/message", map[string]string{"room_id": id.String(), "content": strings.Repeat("x", 8<<20)}, nil, nil)
	if !errors.As(err, &refused) || refused.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body above every cap: %.200v", err)
	}
	for _, path := range []string{"/api/v1/projects", "/gateway/auth/login"} {
		err := a.Do(ctx, "POST", path, strings.Repeat("x", 9<<10), nil, nil)
		if !errors.As(err, &refused) || refused.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %.200v", path, err)
		}
	}
}
