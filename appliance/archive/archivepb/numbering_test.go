package archivepb_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// enums calls f for every enum of the schema.
func enums(f func(protoreflect.EnumDescriptor)) {
	for _, file := range files {
		for i := range file.Enums().Len() {
			f(file.Enums().Get(i))
		}
	}
}

func TestMessagesReserveNumbersForExperiments(t *testing.T) {
	count := 0
	messages(func(md protoreflect.MessageDescriptor) {
		count++
		r := md.ReservedRanges()
		for n := protoreflect.FieldNumber(900); n <= 999; n++ {
			if !r.Has(n) {
				t.Errorf("%s does not reserve %d", md.Name(), n)
				break
			}
		}
		for i := range md.Messages().Len() {
			if !md.Messages().Get(i).IsMapEntry() {
				t.Errorf("%s declares another message inside, which this test does not look at", md.Name())
			}
		}
	})
	if count < 80 {
		t.Errorf("only %d messages looked at", count)
	}
}

func TestOneofMembersBeginAtSixteen(t *testing.T) {
	members := 0
	messages(func(md protoreflect.MessageDescriptor) {
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if fd.ContainingOneof() == nil {
				continue
			}
			members++
			if fd.Number() < 16 {
				t.Errorf("%s is %d", fd.FullName(), fd.Number())
			}
		}
	})
	if members < 40 {
		t.Errorf("only %d members looked at", members)
	}
}

func TestEnumsBeginUnspecifiedAndCarryTheirPrefix(t *testing.T) {
	count := 0
	enums(func(ed protoreflect.EnumDescriptor) {
		count++
		var prefix strings.Builder
		for i, r := range string(ed.Name()) {
			if 'A' <= r && r <= 'Z' && i > 0 {
				prefix.WriteByte('_')
			}
			prefix.WriteRune(r)
		}
		p := strings.ToUpper(prefix.String()) + "_"
		for i := range ed.Values().Len() {
			v := ed.Values().Get(i)
			if !strings.HasPrefix(string(v.Name()), p) {
				t.Errorf("%s does not begin with %s", v.Name(), p)
			}
			if (v.Number() == 0) != (string(v.Name()) == p+"UNSPECIFIED") {
				t.Errorf("%s is %d", v.Name(), v.Number())
			}
		}
	})
	if count < 29 {
		t.Errorf("only %d enums looked at", count)
	}
}

// TestReleasedNumbers compares every field and enum value with testdata/numbers.txt. A line of that file is never
// changed while a release has it.
func TestReleasedNumbers(t *testing.T) {
	var got []string
	messages(func(md protoreflect.MessageDescriptor) {
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			got = append(got, fmt.Sprintf("%s %d %s %s", md.Name(), fd.Number(), fd.Name(), typeOf(fd)))
		}
	})
	enums(func(ed protoreflect.EnumDescriptor) {
		for i := range ed.Values().Len() {
			v := ed.Values().Get(i)
			got = append(got, fmt.Sprintf("%s %d %s", ed.Name(), v.Number(), v.Name()))
		}
	})
	const path = "testdata/numbers.txt"
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(golden), "\n"), "\n")
	if *update { // add what is new
		want = append(want, got...)
		slices.Sort(want)
		want = slices.Compact(want)
		if err := os.WriteFile(path, []byte(strings.Join(want, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("the schema no longer has: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s does not have: %s", path, line)
		}
	}
}

func typeOf(fd protoreflect.FieldDescriptor) string {
	name := fd.Kind().String()
	switch {
	case fd.IsMap():
		return fmt.Sprintf("map<%s,%s>", typeOf(fd.MapKey()), typeOf(fd.MapValue()))
	case fd.Message() != nil:
		name = string(fd.Message().Name())
	case fd.Enum() != nil:
		name = string(fd.Enum().Name())
	}
	if fd.IsList() {
		return "repeated " + name
	}
	return name
}
