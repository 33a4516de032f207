package gateway_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/room/media"
)

type roomShape struct {
	ID              uuid.UUID
	Name            string
	ChannelType     string    `json:"channel_type"`
	OwnerID         uuid.UUID `json:"owner_id"`
	ReadVisibility  string    `json:"read_visibility"`
	WriteVisibility string    `json:"write_visibility"`
	GroupID         *string   `json:"group_id"`
	Archived        bool
	Agents          []struct {
		ID         uuid.UUID
		Name       string
		JoinEvents bool `json:"receives_join_events"`
		Note       *string
	}
	People []struct {
		Name    string
		Manager bool
	}
	Roles []struct {
		Name         string
		Exclusive    bool
		Instructions string
	}
}

func TestRooms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fox, owl := r.fox.ID.String(), r.owl.ID.String()
	var made roomShape
	r.as(r.ann, "POST", "/rooms", map[string]any{"name": "den", "description": "d", "agent_ids": []string{fox}, "agent_names": []string{"owl"},
		"join_event_listeners": []string{"owl"}, "roles": []map[string]any{{"name": "lead", "exclusive": true, "instructions": "i"}}}).
		wants(201).into(&made)
	if made.ChannelType != "channel_public" || made.OwnerID != r.ann.ID || made.ReadVisibility != "public" || len(made.Agents) != 2 ||
		made.Agents[0].JoinEvents || !made.Agents[1].JoinEvents || made.Agents[0].Note == nil || len(made.Roles) != 1 ||
		!made.Roles[0].Exclusive || len(made.People) != 1 || !made.People[0].Manager {
		t.Fatalf("%+v", made)
	}
	path := "/rooms/" + made.ID.String()
	for _, c := range []struct {
		name   string
		body   string
		status int
		words  string
	}{
		{"no name", `{"agent_names":["fox"]}`, 422, "body.name: is required"},
		{"no agent", `{"name":"x"}`, 400, "agent"},
		{"unknown agent", `{"name":"x","agent_names":["cat"]}`, 400, "cat"},
		{"bad id", `{"name":"x","agent_ids":["cat"]}`, 400, "agent_ids[0]: "},
		{"listener who is not in it", `{"name":"x","agent_names":["fox"],"join_event_listeners":["owl"]}`, 400, "join_event_listeners[0]: "},
		{"direct", `{"name":"x","agent_names":["fox"],"channel_type":"direct"}`, 400, "channel_type: "},
		{"write without read", `{"name":"x","agent_names":["fox"],"read_visibility":"private","write_visibility":"public"}`, 400, "write_visibility: "},
		{"unknown group", `{"name":"x","agent_names":["fox"],"group_id":"nope"}`, 400, "group"},
		{"role without a name", `{"name":"x","agent_names":["fox"],"roles":[{}]}`, 422, "roles[0].name"},
		{"agents as text", `{"name":"x","agent_ids":"fox"}`, 422, "agent_ids"},
	} {
		t.Run(c.name, func(t *testing.T) { r.as(r.ann, "POST", "/rooms", c.body).wants(c.status, c.words) })
	}
	var list []roomShape
	if r.as(r.bob, "GET", "/rooms", nil).wants(200).into(&list); len(list) != 1 {
		t.Errorf("%d rooms after refusals", len(list))
	}
	r.as(r.bob, "GET", path, nil).wants(200, `"name":"den"`)
	group, err := r.dir.CreateGroup(t.Context(), r.ann.Actor(), "burrows", "")
	r.ok("group", err)
	var changed roomShape
	r.as(r.ann, "PATCH", path, map[string]any{"name": "burrow", "group_id": group.ID.String(), "write_visibility": "private"}).wants(200).into(&changed)
	if changed.Name != "burrow" || changed.GroupID == nil || changed.WriteVisibility != "private" || len(changed.Agents) != 2 {
		t.Errorf("%+v", changed)
	}
	r.as(r.ann, "PATCH", path, `{"description":"new"}`).wants(200, group.ID.String(), `"description":"new"`)
	r.as(r.ann, "PATCH", path, `{"group_id":null}`).wants(200, `"group_id":null`)
	r.as(r.bob, "PATCH", path, `{"name":"x"}`).wants(403, "only by its owner")
	r.as(r.ann, "PATCH", path, `{"name":""}`).wants(400, "name: ")
	r.as(r.admin, "POST", path+"/archive", nil).wants(200, `"archived":true`)
	r.as(r.ann, "GET", "/rooms", nil).wants(200, "[]")
	r.as(r.ann, "GET", "/rooms?include_archived=true", nil).wants(200, made.ID.String())
	r.as(r.ann, "GET", "/rooms?include_archived=perhaps", nil).wants(400, "include_archived: ")
	r.as(r.ann, "POST", path+"/unarchive", nil).wants(200, `"archived":false`)

	// Members.
	r.as(r.ann, "PATCH", path+"/agents/"+fox, `{"receives_join_events":true}`).wants(200, `"receives_join_events":true`)
	r.as(r.ann, "PATCH", path+"/agents/"+fox, `{}`).wants(422, "receives_join_events")
	r.as(r.bob, "DELETE", path+"/agents/"+fox, nil).wants(403, "only by its owner")
	r.as(r.ann, "DELETE", path+"/agents/"+owl, nil).wants(200)
	r.as(r.ann, "DELETE", path+"/agents/"+owl, nil).wants(404)
	for range 2 {
		var got struct{ Agents []struct{ Name string } }
		if r.as(r.ann, "POST", path+"/agents", map[string]any{"agent_ids": []string{owl}}).wants(200).into(&got); len(got.Agents) != 2 {
			t.Errorf("%+v", got)
		}
	}
	r.as(r.ann, "POST", path+"/agents", `{}`).wants(422, "agent_ids")

	// Roles.
	r.as(r.ann, "POST", path+"/roles", `{"name":"scout","instructions":"look"}`).wants(200, `"name":"scout"`)
	r.as(r.ann, "POST", path+"/roles", `{"name":"Scout"}`).wants(409, "name: ")
	r.as(r.ann, "POST", path+"/roles", `{}`).wants(422, "body.name")
	r.as(r.bob, "POST", path+"/roles", `{"name":"spy"}`).wants(403)
	r.as(r.ann, "PATCH", path+"/roles/scout", `{"exclusive":true}`).wants(200, `"exclusive":true`, `"instructions":"look"`)
	r.as(r.bob, "GET", path+"/roles/scout", nil).wants(200)
	r.as(r.ann, "DELETE", path+"/roles/scout", nil).wants(200)
	r.as(r.ann, "GET", path+"/roles", nil).wants(200, "lead")
	r.as(r.ann, "GET", path+"/roles/scout", nil).wants(404, "scout")

	r.as(r.bob, "DELETE", path, nil).wants(403, "only by its owner")
	r.as(r.ann, "DELETE", path, nil).wants(200)
	r.as(r.ann, "GET", path, nil).wants(404, "not found")
}

func TestPrivateRoomsAreUnseen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox).String()
	r.as(r.bob, "GET", "/rooms/"+id, nil).wants(403, "private")
	r.as(r.bob, "GET", "/rooms/"+id+"/roles", nil).wants(403, "private")
	r.as(r.bob, "GET", "/rooms", nil).wants(200, "[]")
	r.as(r.bob, "GET", "/chats/"+id+"/messages", nil).wants(403)
	r.as(r.bob, "POST", "/chats/"+id+"/messages", `{"requestId":"1","body":"x"}`).wants(403)
	r.as(r.bob, "GET", "/rooms/"+id+"/media?mxc="+uuid.NewString(), nil).wants(403)
	r.as(r.admin, "GET", "/rooms/"+id, nil).wants(200)
	r.as(r.admin, "GET", "/chats/"+id+"/messages", nil).wants(403, "not a member")
}

// files is a multipart body.
func files(t *testing.T, parts map[string]string) (body string, contentType func(*http.Request)) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, content := range parts {
		p, err := w.CreateFormFile("files", name)
		if err == nil {
			_, err = p.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), header("Content-Type", w.FormDataContentType())
}

func TestUploads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	path := "/rooms/" + id.String() + "/media"
	var got struct {
		Uploads []struct{ MediaID, Filename, Mimetype string }
	}
	body, kind := files(t, map[string]string{"päge.html": "<script>alert(1)</script>"})
	r.as(r.ann, "POST", path, body, kind).wants(200).into(&got)
	if len(got.Uploads) != 1 || got.Uploads[0].Filename != "päge.html" {
		t.Fatalf("%+v", got)
	}
	mediaID := got.Uploads[0].MediaID
	var posted struct{ Messages []chatMessage }
	say := map[string]any{"requestId": "1", "body": "see this", "uploadIds": []string{mediaID}}
	for range 2 { // idempotent with files, too
		r.as(r.ann, "POST", "/chats/"+id.String()+"/messages", say).wants(200).into(&posted)
		if len(posted.Messages) != 1 || len(posted.Messages[0].Attachments) != 1 || posted.Messages[0].Attachments[0].MediaID != mediaID ||
			posted.Messages[0].Seq != 1 {
			t.Fatalf("%+v", posted)
		}
	}
	a := r.as(r.ann, "GET", path+"?mxc="+mediaID, nil)
	if a.status != 200 || a.body != "<script>alert(1)</script>" || a.header.Get("Content-Disposition") != `attachment; filename="p_ge.html"; filename*=UTF-8''p%C3%A4ge.html` ||
		a.header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(a.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	tag := a.header.Get("ETag")
	a = r.as(r.ann, "GET", path+"?mxc="+mediaID, nil, header("Range", "bytes=8-12"), header("If-Range", tag))
	if a.wants(206); a.body != "alert" || a.header.Get("Content-Range") != "bytes 8-12/25" {
		t.Errorf("range: %q %v", a.body, a.header)
	}
	r.as(r.ann, "GET", path+"?mxc="+mediaID, nil, header("If-None-Match", tag)).wants(304)
	r.as(r.ann, "GET", path, nil).wants(400, "mxc: ")
	r.as(r.ann, "GET", path+"?mxc="+uuid.NewString(), nil).wants(404)
	r.as(r.bob, "POST", path, body, kind).wants(403)
	r.as(r.ann, "POST", path, "x").wants(400, "multipart")
	empty, kind2 := files(t, nil)
	r.as(r.ann, "POST", path, empty, kind2).wants(400, "at least one file")
	big, kind3 := files(t, map[string]string{"big": strings.Repeat("x", 1001)})
	r.as(r.ann, "POST", path, big, kind3).wants(400, "larger than")
	say["requestId"], say["uploadIds"] = "2", []string{uuid.NewString()}
	r.as(r.ann, "POST", "/chats/"+id.String()+"/messages", say).wants(400, "uploadIds[0]: ")
}

func TestDownloadsAreSaved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := "/rooms/" + r.chat(r.ann, "one", r.fox).String() + "/media"
	for name, content := range map[string]string{"a.txt": "plain", "a b.png": "\x89PNG\r\n\x1a\n", "x.pdf": "%PDF-1.7"} {
		var got struct{ Uploads []struct{ MediaID string } }
		body, kind := files(t, map[string]string{name: content})
		r.as(r.ann, "POST", path, body, kind).wants(200).into(&got)
		a := r.as(r.ann, "GET", path+"?mxc="+got.Uploads[0].MediaID, nil).wants(200)
		if d := a.header.Get("Content-Disposition"); d != `attachment; filename="`+name+`"` || a.body != content {
			t.Errorf("%s: %s, %q", name, d, a.body)
		}
	}
}

func TestRepeatingAPostWithOldFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox, r.owl)
	upload := func() string {
		var got struct{ Uploads []struct{ MediaID string } }
		body, kind := files(t, map[string]string{"a.txt": "plain"})
		r.as(r.ann, "POST", "/rooms/"+id.String()+"/media", body, kind).wants(200).into(&got)
		return got.Uploads[0].MediaID
	}
	path := "/chats/" + id.String() + "/messages"
	say := map[string]any{"requestId": "1", "body": "see this", "uploadIds": []string{upload()}, "mentionAgentId": r.owl.ID}
	unused := upload()
	first := r.as(r.ann, "POST", path, say).wants(200).body

	r.clk.Advance(media.UnusedAge)
	delete(r.cookies, r.ann.Name)
	r.as(r.ann, "DELETE", "/rooms/"+id.String()+"/agents/"+r.owl.ID.String(), nil).wants(200)
	if again := r.as(r.ann, "POST", path, say).wants(200).body; again != first {
		t.Errorf("the repetition is answered\n%s, first\n%s", again, first)
	}
	// What was refused for a new message still is.
	say["requestId"] = "2"
	r.as(r.ann, "POST", path, say).wants(400, "mentionAgentId: ")
	delete(say, "mentionAgentId")
	r.as(r.ann, "POST", path, say).wants(400, "uploadIds[0]: ", "too long ago")
	say["uploadIds"] = []string{unused}
	r.as(r.ann, "POST", path, say).wants(400, "uploadIds[0]: ", "too long ago")
	say["requestId"] = "1"
	r.as(r.ann, "POST", path, say).wants(409, "REQUEST_REUSED")
}
