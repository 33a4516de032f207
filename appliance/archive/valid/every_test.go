package valid_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/archive/valid/validtest"
)

// samples are valid messages that hold every message of the schema.
func samples() map[string]proto.Message {
	out := make(map[string]proto.Message)
	for name, e := range validtest.Envelopes() {
		out[name] = e
	}
	out["manifest"], out["marker"] = validtest.Manifest(), validtest.Marker()
	return out
}

// schema calls f for every message of the schema.
func schema(f func(protoreflect.MessageDescriptor)) {
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_archive_control_v1_common_proto, pb.File_archive_control_v1_errors_proto, pb.File_archive_control_v1_envelope_proto,
		pb.File_archive_control_v1_registration_proto, pb.File_archive_control_v1_command_proto, pb.File_archive_control_v1_job_proto,
		pb.File_archive_control_v1_inventory_proto, pb.File_archive_control_v1_route_proto, pb.File_archive_control_v1_manifest_proto,
	} {
		for i := range file.Messages().Len() {
			f(file.Messages().Get(i))
		}
	}
}

// walk calls f for m and every message of the schema inside it.
func walk(m protoreflect.Message, f func(protoreflect.Message)) {
	if m.Descriptor().ParentFile().Package() == "google.protobuf" {
		return
	}
	f(m)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), f)
			}
		default:
			walk(v.Message(), f)
		}
		return true
	})
}

func TestSamplesAreValidAndHoldTheWholeSchema(t *testing.T) {
	missing := make(map[protoreflect.FullName]bool)
	schema(func(md protoreflect.MessageDescriptor) {
		for i := range md.Fields().Len() {
			missing[md.Fields().Get(i).FullName()] = true
		}
	})
	for name, m := range samples() {
		if err := valid.Message(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		walk(m.ProtoReflect(), func(sub protoreflect.Message) {
			if err := valid.Message(sub.Interface()); err != nil {
				t.Errorf("%s: %s: %v", name, sub.Descriptor().Name(), err)
			}
			sub.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
				delete(missing, fd.FullName())
				return true
			})
		})
	}
	// Fields that are empty in everything valid, or in a valid message of the samples' kind.
	for _, name := range []protoreflect.FullName{"archive_control.v1.RouteOptions.in_place_writes", "archive_control.v1.CreateRoute.expected_sequence",
		"archive_control.v1.FileEntry.padding", "archive_control.v1.FileEntry.symlink_target", "archive_control.v1.ContentTree.files",
		"archive_control.v1.ProtocolVersion.minor", "archive_control.v1.InventoryChunk.chunk_index",
		"archive_control.v1.JobSnapshot.error"} {
		delete(missing, name)
	}
	for name := range missing {
		t.Errorf("no sample has %s", name)
	}
}

func TestEveryMessageHasRules(t *testing.T) {
	schema(func(md protoreflect.MessageDescriptor) {
		var sample protoreflect.Message
		for _, m := range samples() {
			walk(m.ProtoReflect(), func(sub protoreflect.Message) {
				if sub.Descriptor() == md {
					sample = sub
				}
			})
		}
		if sample == nil {
			t.Errorf("no sample of %s", md.Name())
			return
		}
		if err := valid.AsError(valid.Message(sample.New().Interface())); err != nil && err.Code == pb.ErrorCode_ERROR_CODE_INTERNAL {
			t.Errorf("%s: %v", md.Name(), err)
		}
	})
	if err := valid.Message((*pb.JobEvent)(nil)); err == nil {
		t.Error("a message that is not there is valid")
	}
	for name, m := range samples() { // an element that is not there is no reason to panic
		walk(m.ProtoReflect(), func(sub protoreflect.Message) {
			sub.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				if !fd.IsList() || fd.Message() == nil {
					return true
				}
				old := v.List().Get(0)
				v.List().Set(0, protoreflect.ValueOfMessage(old.Message().Type().Zero()))
				if err := valid.Message(sub.Interface()); err == nil && fd.Message().Name() != "IndexRange" {
					t.Errorf("%s: %s: an element that is not there is valid", name, fd.FullName())
				}
				v.List().Set(0, old)
				return true
			})
		})
	}
}

// change is one way to spoil a value.
type change struct {
	name string
	code pb.ErrorCode
	to   protoreflect.Value
}

// TestEveryFieldIsLookedAt spoils every enum, time, duration, fraction, UUID, digest and path of the samples, one at a
// time, and expects an error that names the field and quotes nothing, and that what holds the message is refused too.
func TestEveryFieldIsLookedAt(t *testing.T) {
	const (
		invalid     = pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT
		unsupported = pb.ErrorCode_ERROR_CODE_UNSUPPORTED
		unsafe      = pb.ErrorCode_ERROR_CODE_PATH_UNSAFE
	)
	paths := []protoreflect.Name{"path", "relative_dir", "job_dir"}
	changes := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) []change {
		switch fd.Kind() {
		case protoreflect.EnumKind:
			return []change{{"unknown", unsupported, protoreflect.ValueOfEnum(7777)}, {"negative", unsupported, protoreflect.ValueOfEnum(-1)}}
		case protoreflect.DoubleKind:
			return []change{{"NaN", invalid, protoreflect.ValueOfFloat64(math.NaN())}, {"infinity", invalid, protoreflect.ValueOfFloat64(math.Inf(-1))}}
		case protoreflect.StringKind:
			s := v.String()
			text := func(name string, code pb.ErrorCode, s string) change {
				return change{name, code, protoreflect.ValueOfString(s)}
			}
			switch {
			case slices.Contains(paths, fd.Name()):
				return []change{text("parent", unsafe, "../leaked"), text("absolute", unsafe, "/leaked"), text("control", unsafe, "a/b\x01leaked"), text("own", unsafe, ".archive-control/leaked")}
			case valid.IsUUID(s):
				return []change{text("capital", invalid, strings.ToUpper(s)), text("braces", invalid, "{"+s+"}"), text("bare", invalid, strings.ReplaceAll(s, "-", "")),
					text("nil", invalid, "00000000-0000-0000-0000-000000000000"), text("digit", invalid, "g"+s[1:])}
			case len(s) == 64 || len(s) == 40 || len(s) == 32 && fd.Name() != "token":
				return []change{text("capital", invalid, strings.ToUpper(s[:1])+"A"+s[2:]), text("short", invalid, s[1:]), text("long", invalid, s+"0"), text("other", invalid, "g"+s[1:])}
			}
		}
		return nil
	}
	spoiled := 0
	var root proto.Message
	expect := func(name string, m protoreflect.Message, fd protoreflect.FieldDescriptor, c change) {
		t.Helper()
		spoiled++
		if valid.Message(root) == nil {
			t.Errorf("%s is valid with %s: %s", name, fd.FullName(), c.name)
		}
		err := valid.AsError(valid.Message(m.Interface()))
		switch {
		case err == nil:
			t.Errorf("%s: %s: %s is valid", name, fd.FullName(), c.name)
		case err.Code != c.code:
			t.Errorf("%s: %s: %s: %v has code %v", name, fd.FullName(), c.name, err, err.Code)
		case !strings.HasPrefix(err.Field, string(fd.Name())):
			t.Errorf("%s: %s: %s: %v", name, fd.FullName(), c.name, err)
		case strings.Contains(err.Error(), "leaked") || strings.Contains(err.Error(), "7777"):
			t.Errorf("%s: %v quotes its input", name, err)
		}
	}
	for name, sample := range samples() {
		root = sample
		walk(sample.ProtoReflect(), func(m protoreflect.Message) {
			if m.Descriptor().Name() == "Envelope" || m.Descriptor().Name() == "AssignJob" || m.Descriptor().Name() == "ReconcileJobCommand" {
				return // an error of their parts comes first: TestRules looks at them
			}
			m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				switch {
				case fd.IsMap():
				case fd.IsList() && fd.Message() == nil:
					for _, c := range changes(fd, v.List().Get(0)) {
						old := v.List().Get(0)
						v.List().Set(0, c.to)
						expect(name, m, fd, c)
						v.List().Set(0, old)
					}
				case fd.Message() != nil && !fd.IsList() && fd.Message().ParentFile().Package() == "google.protobuf":
					when := v.Message()
					field := when.Descriptor().Fields().ByName("seconds")
					old := when.Get(field)
					bad := []int64{946684799, 253402300800} // 1999-12-31 and 10000-01-01
					if fd.Message().Name() == "Duration" {
						bad = []int64{-1, 91 * 24 * 3600, math.MaxInt64}
					}
					for _, n := range bad {
						when.Set(field, protoreflect.ValueOfInt64(n))
						expect(name, m, fd, change{"out of range", invalid, protoreflect.Value{}})
					}
					when.Set(field, old)
				case fd.Message() == nil:
					for _, c := range changes(fd, v) {
						m.Set(fd, c.to)
						expect(name, m, fd, c)
						m.Set(fd, v)
					}
				}
				return true
			})
		})
		if err := valid.Message(sample); err != nil {
			t.Fatalf("%s was left spoiled: %v", name, err)
		}
	}
	if spoiled < 3000 {
		t.Errorf("only %d values spoiled", spoiled)
	}
}
