package frame_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/valid/validtest"
)

var update = flag.Bool("update", false, "write the golden frames that are missing; change none")

// options returns those of the receiver of a payload.
func options(e *pb.Envelope) frame.Options {
	o := frame.Options{From: frame.FromControl, Registered: true, Client: validtest.Client}
	switch e.Payload.(type) {
	case *pb.Envelope_RegisterRequest:
		return frame.Options{From: frame.FromClient}
	case *pb.Envelope_RegisterResponse, *pb.Envelope_RegisterRejected:
		o.Registered = false
	case *pb.Envelope_Heartbeat, *pb.Envelope_CommandAck, *pb.Envelope_JobEvent, *pb.Envelope_JobSnapshot, *pb.Envelope_InventoryChunk, *pb.Envelope_RouteUpdate:
		o.From = frame.FromClient
	}
	return o
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := frame.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryValidEnvelopeComesBack(t *testing.T) {
	payloads := make(map[string]bool)
	for name, e := range validtest.Envelopes() {
		got, v := frame.Decode(marshal(t, e), options(e))
		if v != nil {
			t.Errorf("%s: %v", name, v)
			continue
		}
		if got.Refusal != nil || got.Partial {
			t.Errorf("%s: refused: %v", name, got.Refusal)
		}
		if !proto.Equal(got.Envelope, e) {
			t.Errorf("%s comes back as %v", name, got.Envelope)
		}
		m := e.ProtoReflect()
		payloads[string(m.WhichOneof(m.Descriptor().Oneofs().ByName("payload")).Name())] = true
	}
	members := new(pb.Envelope).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range members.Len() {
		if name := string(members.Get(i).Name()); !payloads[name] {
			t.Errorf("no sample of %s", name)
		}
	}
}

// TestGoldenFrames decodes frames as the first schema wrote them. They are never changed: a peer of that age sends them.
func TestGoldenFrames(t *testing.T) {
	samples := validtest.Envelopes()
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		path := filepath.Join("testdata", "frames", name+".json")
		_, err := os.Stat(path)
		if os.IsNotExist(err) && *update {
			var b bytes.Buffer
			if err := json.Compact(&b, marshal(t, samples[name])); err != nil {
				t.Fatal(err)
			}
			err = os.WriteFile(path, append(b.Bytes(), '\n'), 0o644)
		}
		if err != nil {
			t.Errorf("%v: run the test with -update for a new sample", err)
		}
	}
	paths, err := filepath.Glob("testdata/frames/*.json")
	if err != nil || len(paths) < len(samples) {
		t.Fatalf("%d golden frames, %v", len(paths), err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		e := new(pb.Envelope)
		if err := protojson.Unmarshal(data, e); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		got, v := frame.Decode(data, options(e))
		if v != nil || got.Refusal != nil {
			t.Errorf("%s: %v", path, v)
		} else if !proto.Equal(got.Envelope, e) {
			t.Errorf("%s decodes as %v", path, got.Envelope)
		}
	}
}

func TestTakeToken(t *testing.T) {
	r := validtest.Registration()
	if got := string(frame.TakeToken(r)); got != validtest.Token {
		t.Errorf("token %q", got)
	}
	if strings.Contains(r.String(), validtest.Token) || bytes.Contains(frame.Deterministic(r), []byte(validtest.Token)) {
		t.Error("the token is still there")
	}
	if got := frame.TakeToken(nil); len(got) != 0 {
		t.Errorf("token %q of nothing", got)
	}
}

func TestPayloadIdentity(t *testing.T) {
	c := validtest.Commands()[0]
	payload, sum := frame.PayloadIdentity(c)
	if c.Attempt == 0 {
		t.Fatal("the command was changed")
	}
	again := proto.CloneOf(c)
	again.Attempt = 9
	if p, s := frame.PayloadIdentity(again); s != sum || !bytes.Equal(p, payload) {
		t.Error("the attempt counts")
	}
	if frame.Equal(c, again) {
		t.Error("Equal passes over the attempt")
	}
	read := new(pb.Command)
	if err := proto.Unmarshal(payload, read); err != nil || read.Attempt != 0 || read.CommandId != c.CommandId {
		t.Errorf("the payload reads as %v, %v", read, err)
	}
	again.IssuedAt.Nanos++
	if _, s := frame.PayloadIdentity(again); s == sum {
		t.Error("issued_at does not count")
	}
}

func TestDigestsPassOverUnknownFields(t *testing.T) {
	for name, e := range validtest.Envelopes() {
		more := proto.CloneOf(e)
		more.ProtoReflect().SetUnknown([]byte{0xa0, 0x3f, 1}) // field 1012, a number
		if c := more.GetCommand().GetAssignJob(); c != nil {
			c.Definition.Requested.Ranges[0].ProtoReflect().SetUnknown([]byte{0xa0, 0x3f, 1})
		}
		if frame.Digest(e) != frame.Digest(more) || !frame.Equal(e, more) {
			t.Errorf("%s: an unknown field counts", name)
		}
		if len(more.ProtoReflect().GetUnknown()) == 0 {
			t.Errorf("%s: the message was changed", name)
		}
	}
	if frame.Equal(validtest.Marker(), validtest.Manifest()) {
		t.Error("messages of two types are equal")
	}
}

func TestMarshalRefusesWhatJSONCannotHold(t *testing.T) {
	if b, err := frame.Marshal(&pb.Destination{Category: "\xff"}); err == nil {
		t.Errorf("%q", b)
	}
}

func TestDecodeFile(t *testing.T) {
	manifest := compact(t, string(marshal(t, validtest.Manifest())))
	m := new(pb.TransferManifest)
	if v := frame.DecodeFile([]byte(manifest), m); v != nil || !proto.Equal(m, validtest.Manifest()) {
		t.Errorf("%v: %v", v, m)
	}
	marker := new(pb.ReadyMarker)
	if v := frame.DecodeFile(marshal(t, validtest.Marker()), marker); v != nil || !proto.Equal(marker, validtest.Marker()) {
		t.Errorf("%v: %v", v, marker)
	}
	for _, c := range []struct {
		name, in string
		check    int
		code     pb.ErrorCode
	}{
		{"two objects", manifest + manifest, 3, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID},
		{"key twice", strings.Replace(manifest, `"format":1`, `"format":1,"format":1`, 1), 4, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID},
		{"unknown field", strings.Replace(manifest, `"format":1`, `"format":1,"new":1`, 1), 5, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID},
		{"unknown enum name", strings.Replace(manifest, `FILE_KIND_REGULAR`, `FILE_KIND_NEW`, 1), 5, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID},
		{"both spellings", strings.Replace(manifest, `"jobId"`, `"job_id":"","jobId"`, 1), 6, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID},
		{"rule", strings.Replace(manifest, `"format":1`, `"format":2`, 1), 8, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID},
		{"path", strings.Replace(manifest, `A film (2020)/0.mkv`, `../0.mkv`, 1), 8, pb.ErrorCode_ERROR_CODE_PATH_UNSAFE},
	} {
		if v := frame.DecodeFile([]byte(c.in), new(pb.TransferManifest)); v == nil || v.Check != c.check || v.Code != c.code {
			t.Errorf("%s: %v, want check %d", c.name, v, c.check)
		}
	}
}

func TestLimitsOfTheScanFitThoseOfMessages(t *testing.T) {
	r := validtest.Registration()
	r.ActiveJobs = nil
	for i := range valid.MaxActiveCursors {
		r.ActiveJobs = append(r.ActiveJobs, validtest.Cursor(validtest.UUID(1000+i)))
	}
	e := validtest.Envelopes()["register_request"]
	e.Payload = &pb.Envelope_RegisterRequest{RegisterRequest: r}
	if _, v := frame.Decode(marshal(t, e), frame.Options{From: frame.FromClient}); v != nil {
		t.Errorf("512 cursors: %v", v)
	}
	if _, v := frame.Decode(marshal(t, e), frame.Options{From: frame.FromClient, MaxCursors: 256}); v == nil || v.Check != 4 {
		t.Errorf("512 cursors against 256: %v", v)
	}
}
