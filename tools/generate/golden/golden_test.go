package golden_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/document"
)

const schemas = "../../../schemas"

// every returns the files of all golden events and examples.
func every(t *testing.T) []string {
	t.Helper()
	released, err := filepath.Glob(schemas + "/released/golden/*/*.json")
	require.NoError(t, err)
	examples, err := filepath.Glob(schemas + "/examples/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, released)
	require.NotEmpty(t, examples)
	return append(released, examples...)
}

func TestGoldenEventsCanBeDecoded(t *testing.T) {
	t.Parallel()
	for _, file := range every(t) {
		t.Run(strings.TrimPrefix(filepath.ToSlash(file), schemas+"/"), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			e, err := event.UnmarshalStructured(raw)
			require.NoError(t, err)
			require.Equal(t, filepath.Base(file), strings.TrimPrefix(e.Type(), event.TypePrefix)+".json")
			data, err := events.DecodeAny(e.Type(), e.Data())
			require.NoError(t, err)
			again, err := json.Marshal(data)
			require.NoError(t, err)
			require.JSONEq(t, string(e.Data()), string(again), "the Go type has every field")

			msg, err := event.Encode(e, "lockstep.local.test")
			require.NoError(t, err)
			back, err := event.Decode(msg.Header, msg.Data)
			require.NoError(t, err)
			structured, err := event.MarshalStructured(back)
			require.NoError(t, err)
			require.JSONEq(t, string(raw), string(structured), "the NATS binding keeps everything")
		})
	}
}

func TestReleaseHasAGoldenEventOfEachType(t *testing.T) {
	t.Parallel()
	version, err := os.ReadFile(schemas + "/released/VERSION")
	require.NoError(t, err)
	folder := filepath.Join(schemas, "released", "golden", strings.TrimSpace(string(version)))
	released, err := catalog.Load(os.DirFS(schemas + "/released/events"))
	require.NoError(t, err)
	for _, e := range released.Events {
		require.FileExists(t, filepath.Join(folder, e.Name+".json"))
	}
}

// An example without a field would not show that the field is lost.
func TestExamplesHaveEveryField(t *testing.T) {
	t.Parallel()
	c, err := catalog.Load(os.DirFS(schemas + "/events"))
	require.NoError(t, err)
	for _, e := range c.Events {
		raw, err := os.ReadFile(filepath.Join(schemas, "examples", e.Name+".json"))
		require.NoError(t, err)
		var example struct {
			Data any `json:"data"`
		}
		require.NoError(t, json.Unmarshal(raw, &example))
		require.Empty(t, absent(t, "", c.Schemas.Root(e.File), []any{example.Data}), "schemas/examples/%s.json", e.Name)
	}
}

// absent returns the pointers of fields that no value has.
func absent(t *testing.T, pointer string, schema document.Node, values []any) []string {
	t.Helper()
	schema, err := schema.Resolve()
	require.NoError(t, err)
	var pointers []string
	for _, name := range schema.At("properties").Keys() {
		var below []any
		for _, value := range values {
			object, _ := value.(map[string]any)
			if member, ok := object[name]; ok {
				below = append(below, member)
			}
		}
		if len(below) == 0 {
			pointers = append(pointers, pointer+"/"+name)
			continue
		}
		pointers = append(pointers, absent(t, pointer+"/"+name, schema.At("properties").At(name), below)...)
	}
	if schema.Has("items") {
		var below []any
		for _, value := range values {
			items, _ := value.([]any)
			below = append(below, items...)
		}
		if len(below) == 0 {
			return append(pointers, pointer+"/items")
		}
		pointers = append(pointers, absent(t, pointer+"/items", schema.At("items"), below)...)
	}
	return pointers
}
