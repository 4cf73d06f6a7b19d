package gotypes_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/generate/document"
	"lockstep.internal/tools/generate/golden"
)

const schemas = "../../../schemas"

// oracle decides with a JSON Schema library and the JSON library whether an event's data is valid.
type oracle struct {
	schemas map[string]*jsonschema.Schema // by event type
	goTypes map[string]reflect.Type       // by event type
}

func newOracle(tb testing.TB) oracle {
	tb.Helper()
	set, err := document.Read(os.DirFS(schemas + "/events"))
	require.NoError(tb, err)
	compiler, err := golden.NewCompiler(set)
	require.NoError(tb, err)
	o := oracle{schemas: map[string]*jsonschema.Schema{}, goTypes: map[string]reflect.Type{}}
	for _, t := range events.Types() {
		name := strings.TrimPrefix(t.Name, events.Prefix)
		o.schemas[t.Name], err = compiler.Compile(event.SchemaBase + name + document.Suffix)
		require.NoError(tb, err)
	}
	for file, e := range sources(tb) {
		decoded, err := events.DecodeAny(e.Type(), e.Data())
		require.NoError(tb, err, file)
		o.goTypes[e.Type()] = reflect.TypeOf(decoded).Elem()
	}
	return o
}

// compare fails unless Decode accepts exactly the data that both the schema and the Go type accept,
// with the same value.
func (o oracle) compare(tb testing.TB, eventType string, data []byte) (valid bool) {
	tb.Helper()
	decoded, err := events.DecodeAny(eventType, data)
	want := reflect.New(o.goTypes[eventType]).Interface()
	wantErr := jsonv2.Unmarshal(data, want)
	if wantErr == nil {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
		require.NoError(tb, err)
		wantErr = o.schemas[eventType].Validate(value)
	}
	if wantErr != nil {
		require.Error(tb, err, "%s accepts %s, but: %s", eventType, data, wantErr)
		return false
	}
	require.NoError(tb, err, "%s refuses %s", eventType, data)
	require.Equal(tb, want, decoded, "%s", data)
	return true
}

// sources are the data of all golden events and examples by file.
func sources(tb testing.TB) map[string]event.Event {
	tb.Helper()
	all := map[string]event.Event{}
	for _, pattern := range []string{"/released/golden/*/*.json", "/examples/*.json"} {
		files, err := filepath.Glob(schemas + pattern)
		require.NoError(tb, err)
		require.NotEmpty(tb, files)
		for _, file := range files {
			raw, err := os.ReadFile(file)
			require.NoError(tb, err)
			all[file], err = event.UnmarshalStructured(raw)
			require.NoError(tb, err)
		}
	}
	return all
}

func TestGoldenEventsAndExamplesAreValid(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	for file, e := range sources(t) {
		require.True(t, o.compare(t, e.Type(), e.Data()), file)
	}
}

// Every value of every golden event and example is removed, and replaced by values of every kind
// and at every limit.
func TestDecodersAgreeWithTheSchemasOnEveryMutation(t *testing.T) {
	t.Parallel()
	o := newOracle(t)
	for file, e := range sources(t) {
		t.Run(strings.TrimPrefix(filepath.ToSlash(file), schemas+"/"), func(t *testing.T) {
			t.Parallel()
			var root any
			require.NoError(t, json.Unmarshal(e.Data(), &root))
			refused, accepted := 0, 0
			mutate(root, func(change any) { root = change }, func() {
				data, err := json.Marshal(root)
				require.NoError(t, err)
				if o.compare(t, e.Type(), data) {
					accepted++
				} else {
					refused++
				}
			})
			require.Positive(t, refused)
			t.Logf("%d mutations accepted, %d refused", accepted, refused)
		})
	}
}

// mutate calls try for every mutation of a value, which set replaces in its document, and restores
// it.
func mutate(value any, set func(any), try func()) {
	for _, other := range []any{
		nil, true, "", "x", "ü", " ", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789+01:00", "2026-02-30T03:04:05Z",
		"2026-01-02t03:04:05z", "2026-01-02T3:04:05Z", "2026-01-02T03:04:05,1Z", "2026-01-02T03:04:05+24:00",
		"2026-01-02T03:04:05+23:60", "0", "007", "18446744073709551616", strings.Repeat("a", 64), strings.Repeat("9", 200),
		json.Number("0"), json.Number("-1"), json.Number("1"), json.Number("999"), json.Number("1000"), json.Number("1.5"),
		json.Number("1.0"), json.Number("1e3"), json.Number("-0"), json.Number("9223372036854775807"),
		json.Number("9223372036854775808"),
		[]any{},
		[]any{nil},
		[]any{""},
		map[string]any{},
		map[string]any{"a": "b"},
		map[string]any{"a": nil},
		map[string]any{"": json.Number("1")},
	} {
		set(other)
		try()
	}
	set(value)
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			member := value[key]
			delete(value, key)
			try()
			value[strings.ToUpper(key)] = member
			try()
			delete(value, strings.ToUpper(key))
			value[key] = member
			mutate(member, func(change any) { value[key] = change }, try)
		}
		value["added_next_year"] = []any{map[string]any{"a": nil}}
		try()
		delete(value, "added_next_year")
	case []any:
		for i, item := range value {
			mutate(item, func(change any) { value[i] = change }, try)
		}
		for _, count := range []int{99, 100, 101, 500, 501} {
			if len(value) > 0 {
				set(slices.Repeat(value[:1], count))
				try()
			}
		}
		set(value)
	}
}

func FuzzDecodersAgreeWithTheSchemas(f *testing.F) {
	types := events.Types()
	for _, e := range sources(f) {
		f.Add(slices.IndexFunc(types, func(t events.Type) bool { return t.Name == e.Type() }), e.Data())
	}
	f.Add(0, []byte("\xff"))
	f.Add(0, []byte(`{"a":1,"a":2}`))
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, which int, data []byte) {
		o.compare(t, types[uint(which)%uint(len(types))].Name, data)
	})
}
