package archivepb_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "signalbox/appliance/archive/archivepb"
)

var update = flag.Bool("update", false, "write the golden files of messages that have none; change none")

// files are the schema's files.
var files = []protoreflect.FileDescriptor{
	pb.File_archive_control_v1_common_proto, pb.File_archive_control_v1_errors_proto, pb.File_archive_control_v1_envelope_proto,
	pb.File_archive_control_v1_registration_proto, pb.File_archive_control_v1_command_proto, pb.File_archive_control_v1_job_proto,
	pb.File_archive_control_v1_inventory_proto, pb.File_archive_control_v1_route_proto, pb.File_archive_control_v1_manifest_proto,
}

// messages calls f for every message of the schema.
func messages(f func(protoreflect.MessageDescriptor)) {
	for _, file := range files {
		for i := range file.Messages().Len() {
			f(file.Messages().Get(i))
		}
	}
}

// samples returns every message with every field filled, once for each member of its oneof, by file name.
func samples(t *testing.T) map[string]proto.Message {
	t.Helper()
	out := make(map[string]proto.Message)
	messages(func(md protoreflect.MessageDescriptor) {
		if md.Oneofs().Len() == 0 {
			out[string(md.Name())] = newMessage(t, md, nil)
			return
		}
		members := md.Oneofs().Get(0).Fields()
		for i := range members.Len() {
			out[fmt.Sprintf("%s.%s", md.Name(), members.Get(i).Name())] = newMessage(t, md, members.Get(i))
		}
	})
	return out
}

func newMessage(t *testing.T, md protoreflect.MessageDescriptor, member protoreflect.FieldDescriptor) proto.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil {
		t.Fatal(err)
	}
	m := mt.New()
	fill(m, member)
	return m.Interface()
}

// fill sets every field of m to a value that tells the field. Of a oneof it sets the member, or the first one.
func fill(m protoreflect.Message, member protoreflect.FieldDescriptor) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if one := fd.ContainingOneof(); one != nil {
			want := member
			if want == nil {
				want = one.Fields().Get(0)
			}
			if fd.Number() != want.Number() {
				continue
			}
		}
		switch {
		case fd.IsMap():
			for n := range 2 {
				m.Mutable(fd).Map().Set(scalar(fd.MapKey(), n).MapKey(), scalar(fd.MapValue(), n))
			}
		case fd.IsList() && fd.Message() != nil:
			fill(m.Mutable(fd).List().AppendMutable().Message(), nil)
		case fd.IsList():
			for n := range 2 {
				m.Mutable(fd).List().Append(scalar(fd, n))
			}
		case fd.Message() != nil && fd.Message().ParentFile().Package() == "google.protobuf":
			sub := m.Mutable(fd).Message() // a timestamp or duration
			sub.Set(sub.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(1_700_000_000+int64(fd.Number())))
			sub.Set(sub.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOfInt32(int32(fd.Number())*1000))
		case fd.Message() != nil:
			fill(m.Mutable(fd).Message(), nil)
		default:
			m.Set(fd, scalar(fd, 0))
		}
	}
}

// scalar returns the n-th value of a field.
func scalar(fd protoreflect.FieldDescriptor, n int) protoreflect.Value {
	number := int(fd.Number()) + 100*n
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("%s %d é", fd.Name(), number))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(4_000_000_000 + uint32(number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(18_000_000_000_000_000_000 + uint64(number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number) / 8)
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(1 + n%(values.Len()-1)).Number())
	}
	panic("a kind the schema did not have: " + fd.Kind().String())
}

func TestGoldenMessages(t *testing.T) {
	all := samples(t)
	digests := readDigests(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		path := filepath.Join("testdata", name+".json")
		golden, err := os.ReadFile(path)
		if os.IsNotExist(err) && *update {
			golden = indent(t, m)
			err = os.WriteFile(path, golden, 0o644)
		}
		if err != nil {
			t.Errorf("%v: run the test with -update for a new message", err)
			continue
		}
		if got, want := generic(t, indent(t, m)), generic(t, golden); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: JSON is not that of the golden file:\n got %v\nwant %v", name, got, want)
		}
		read := m.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal(golden, read); err != nil || !proto.Equal(read, m) {
			t.Errorf("%s: the golden file reads as %v, %v", name, read, err)
		}
		binary, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(binary)
		if digest := hex.EncodeToString(sum[:]); digests[name] == "" && *update {
			digests[name] = digest
		} else if digests[name] != digest {
			t.Errorf("%s: deterministic binary form has SHA-256 %s, golden %s", name, digest, digests[name])
		}
	}
	for name := range digests {
		if all[name] == nil {
			t.Errorf("testdata has a digest of %s, which the schema does not have", name)
		}
	}
	entries, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range entries {
		if name := strings.TrimSuffix(filepath.Base(path), ".json"); all[name] == nil {
			t.Errorf("%s is of no message", path)
		}
	}
	if *update {
		writeDigests(t, digests)
	}
}

// indent returns m as JSON with stable white space.
func indent(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(json.RawMessage(b), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func generic(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

const digestFile = "testdata/digests.txt"

func readDigests(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	f, err := os.Open(digestFile)
	if os.IsNotExist(err) && *update {
		return out
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		digest, name, _ := strings.Cut(s.Text(), "  ")
		out[name] = digest
	}
	return out
}

func writeDigests(t *testing.T, digests map[string]string) {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		fmt.Fprintf(&b, "%s  %s\n", digests[name], name)
	}
	if err := os.WriteFile(digestFile, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
