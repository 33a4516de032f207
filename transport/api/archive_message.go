package api

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
)

// showMessage is a message of the schema as REST writes it: field names as in the schema, every scalar, values of enums as
// words, sizes as numbers, times as times, durations in seconds, and the one member of a oneof that is set.
func showMessage(m proto.Message) any {
	if m == nil || !m.ProtoReflect().IsValid() {
		return nil
	}
	return showReflected(m.ProtoReflect())
}

func showReflected(m protoreflect.Message) any {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return stamp(v.AsTime())
	case *durationpb.Duration:
		return v.AsDuration().Round(time.Millisecond).Seconds()
	}
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if m.Has(f) || !f.HasPresence() {
			out[string(f.Name())] = showField(f, m.Get(f))
		}
	}
	return out
}

func showField(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.IsMap():
		out := map[string]any{}
		v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
			out[k.String()] = showValue(f.MapValue(), e)
			return true
		})
		return out
	case f.IsList():
		out := make([]any, 0, v.List().Len())
		for i := range v.List().Len() {
			out = append(out, showValue(f, v.List().Get(i)))
		}
		return out
	}
	return showValue(f, v)
}

func showValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.EnumKind:
		return archive.EnumWord(f.Enum(), v.Enum())
	case protoreflect.MessageKind:
		return showReflected(v.Message())
	}
	return v.Interface()
}
