package asyncapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	official "github.com/asyncapi/spec-json-schemas/v6"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/generate/asyncapi"
	"lockstep.internal/tools/generate/catalog"
)

const schemas = "../../../schemas"

func load(t *testing.T) catalog.Catalog {
	t.Helper()
	c, err := catalog.Load(os.DirFS(schemas + "/events"))
	require.NoError(t, err)
	return c
}

func generate(t *testing.T) ([]byte, map[string]any) {
	t.Helper()
	raw, err := asyncapi.Generate(load(t), os.DirFS(schemas+"/examples"))
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, yaml.Unmarshal(raw, &doc))
	return raw, doc
}

// asJSON is the document as the JSON Schema library wants it.
func asJSON(t *testing.T, doc any) any {
	t.Helper()
	raw, err := json.Marshal(doc)
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(t, err)
	return value
}

func officialSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	raw, err := official.Get("3.0.0")
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("http://asyncapi.com/definitions/3.0.0/asyncapi.json", doc))
	schema, err := compiler.Compile("http://asyncapi.com/definitions/3.0.0/asyncapi.json")
	require.NoError(t, err)
	return schema
}

func TestDocumentIsValidAsyncAPI(t *testing.T) {
	t.Parallel()
	schema := officialSchema(t)
	_, doc := generate(t)
	require.NoError(t, schema.Validate(asJSON(t, doc)))

	for name, change := range map[string]func(doc map[string]any){
		"version": func(doc map[string]any) { doc["asyncapi"] = "2.6.0" },
		"no info": func(doc map[string]any) { delete(doc, "info") },
		"action":  func(doc map[string]any) { at(t, doc, "operations", "readApplied")["action"] = "take" },
		"parameter": func(doc map[string]any) {
			at(t, doc, "components", "parameters", "agent")["schema"] = map[string]any{}
		},
	} {
		_, doc := generate(t)
		change(doc)
		require.Error(t, schema.Validate(asJSON(t, doc)), name)
	}
}

func at(t *testing.T, doc map[string]any, path ...string) map[string]any {
	t.Helper()
	for _, key := range path {
		next, ok := doc[key].(map[string]any)
		require.True(t, ok, "no %s in %v", key, path)
		doc = next
	}
	return doc
}

// What a schema cannot say: that references lead somewhere, and that parameters are those of the
// address.
func TestReferencesAndParametersResolve(t *testing.T) {
	t.Parallel()
	_, doc := generate(t)
	var references []string
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				references = append(references, ref)
			}
			for _, member := range v {
				walk(member)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(doc)
	require.NotEmpty(t, references)
	for _, ref := range references {
		if pointer, local := strings.CutPrefix(ref, "#/"); local {
			at(t, doc, strings.Split(pointer, "/")...)
		} else {
			require.FileExists(t, filepath.Join(schemas, ref))
		}
	}
	for id, ch := range at(t, doc, "channels") {
		address, ok := ch.(map[string]any)["address"].(string)
		require.True(t, ok)
		for name := range at(t, doc, "channels", id, "parameters") {
			require.Contains(t, address, "{"+name+"}")
			address = strings.Replace(address, "{"+name+"}", "", 1)
		}
		require.NotContains(t, address, "{", "channel %s", id)
		require.Contains(t, at(t, doc, "operations"), "read"+strings.ToUpper(id[:1])+id[1:])
	}
}

func TestEveryStreamAndTypeIsDescribed(t *testing.T) {
	t.Parallel()
	raw, doc := generate(t)
	for _, s := range topology.Streams() {
		require.Contains(t, string(raw), "- name: "+s.Name+"\n")
	}
	c := load(t)
	for _, e := range c.Events {
		require.Equal(t, e.Type, at(t, doc, "components", "messages", e.Title)["name"])
		data := []string{"components", "messages", e.Title, "payload"}
		if e.Stream.Family == topology.FamilyDeploy { // which travels in a CDEvent
			data = append(data, "properties", "customData")
		}
		require.Equal(t, "./events/"+e.File, at(t, doc, data...)["$ref"])
		for _, subject := range e.Subjects {
			require.Contains(t, string(raw), "address: lockstep.{cell}."+subject+"\n")
		}
	}
	again, _ := generate(t)
	require.Equal(t, raw, again, "the same input gives the same bytes")
}

// The headers that every example has are those that the document promises.
func TestExamplesHaveTheDescribedHeaders(t *testing.T) {
	t.Parallel()
	_, doc := generate(t)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("https://example.test/doc", asJSON(t, doc)))
	for title := range at(t, doc, "components", "messages") {
		if title == "DeadMessage" {
			continue
		}
		schema, err := compiler.Compile(fmt.Sprintf("https://example.test/doc#/components/messages/%s/headers", title))
		require.NoError(t, err)
		samples, ok := at(t, doc, "components", "messages", title)["examples"].([]any)
		require.True(t, ok)
		for _, sample := range samples {
			headers := sample.(map[string]any)["headers"]
			require.NoError(t, schema.Validate(asJSON(t, headers)))
			delete(headers.(map[string]any), "ce-id")
			require.Error(t, schema.Validate(asJSON(t, headers)))
		}
	}
}

func TestGenerateRefusesInvalidInput(t *testing.T) {
	t.Parallel()
	c := load(t)
	name := c.Events[0].Name + ".json"
	for what, tc := range map[string]struct {
		change func(c *catalog.Catalog, examples fstest.MapFS)
		want   string
	}{
		"a missing example": {
			func(_ *catalog.Catalog, examples fstest.MapFS) { delete(examples, name) },
			"write schemas/examples/" + name,
		},
		"no event": {
			func(_ *catalog.Catalog, examples fstest.MapFS) { examples[name] = &fstest.MapFile{Data: []byte(`{}`)} },
			"schemas/examples/" + name,
		},
		"another's example": {
			func(_ *catalog.Catalog, examples fstest.MapFS) { examples[name] = examples[c.Events[1].Name+".json"] },
			"is of type dev.lockstep." + c.Events[1].Name,
		},
		"unknown parameter": {
			func(c *catalog.Catalog, _ fstest.MapFS) { c.Events[0].Subjects[0] = "applied.{planet}" },
			`parameter "planet" is not described`,
		},
		"one id for two": {
			func(c *catalog.Catalog, _ fstest.MapFS) { c.Events[0].Subjects[0] = "applied.{workspace}.{agent}" },
			"would be one channel, applied",
		},
		"a silent stream": {
			func(c *catalog.Catalog, _ fstest.MapFS) { c.Events = c.Events[:4] },
			"no event type is stored on it",
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			examples := fstest.MapFS{}
			files, err := fs.Glob(os.DirFS(schemas+"/examples"), "*.json")
			require.NoError(t, err)
			for _, file := range files {
				raw, err := os.ReadFile(filepath.Join(schemas, "examples", file))
				require.NoError(t, err)
				examples[file] = &fstest.MapFile{Data: raw}
			}
			changed := load(t)
			tc.change(&changed, examples)
			_, err = asyncapi.Generate(changed, examples)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
