package compat_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/generate/compat"
	"lockstep.internal/tools/generate/document"
)

const (
	podFile    = "observed.pod.v1.schema.json"
	commonFile = "common.schema.json"
)

func set(t *testing.T, pod, common string) document.Set {
	t.Helper()
	files := map[string][]byte{commonFile: []byte(common)}
	if pod != "" {
		files[podFile] = []byte(pod)
	}
	s, err := document.New(files)
	require.NoError(t, err)
	return s
}

// field returns an event's schema with a required field id and the optional field f.
func field(schema string) string {
	return `{"type":"object","required":["id"],"x-lockstep-subject":"observed.{agent}.pod",` +
		`"properties":{"id":{"type":"string"},"f":` + schema + `}}`
}

func sentences(breaks []compat.Break) []string {
	sentences := make([]string, 0, len(breaks))
	for _, b := range breaks {
		sentences = append(sentences, b.Pointer+": "+b.What)
	}
	return sentences
}

func TestFieldChanges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		old, now string
		want     []string
	}{
		"nothing":      {`{"type":"string"}`, `{"type":"string"}`, nil},
		"description":  {`{"type":"string","description":"A."}`, `{"type":"string","description":"B."}`, nil},
		"retyped":      {`{"type":"string"}`, `{"type":"integer"}`, []string{"/f: type string became integer"}},
		"widened type": {`{"type":"integer"}`, `{"type":"number"}`, []string{"/f: type integer became number"}},
		"several types": {
			`{"type":"integer"}`, `{"type":["integer","null"]}`,
			[]string{`/f: type integer became ["integer","null"]`},
		},
		"untyped": {`{"type":"integer"}`, `{}`, []string{"/f: type integer became nothing"}},
		"format gone": {
			`{"type":"string","format":"date-time"}`, `{"type":"string"}`,
			[]string{"/f: format date-time became nothing"},
		},
		"format new": {
			`{"type":"string"}`, `{"type":"string","format":"uuid"}`,
			[]string{"/f: format nothing became uuid"},
		},
		"default": {
			`{"type":"integer","default":0}`, `{"type":"integer","default":1}`,
			[]string{"/f: default 0 became 1, so that absence would mean something else"},
		},
		"default gone": {
			`{"type":"string","default":""}`, `{"type":"string"}`,
			[]string{`/f: default "" became nothing, so that absence would mean something else`},
		},
		"const": {
			`{"type":"string","const":"a"}`, `{"type":"string","const":"b"}`,
			[]string{"/f: const a became b"},
		},
		"enum narrowed": {
			`{"type":"string","enum":["a","b"]}`, `{"type":"string","enum":["a"]}`,
			[]string{"/f: enum no longer holds b"},
		},
		"enum widened": {
			`{"type":"string","enum":["a"]}`, `{"type":"string","enum":["a","b"]}`,
			[]string{"/f: enum also holds b, for which consumers have no branch"},
		},
		"enum reordered": {`{"type":"string","enum":["a","b"]}`, `{"type":"string","enum":["b","a"]}`, nil},
		"enum gone": {
			`{"type":"string","enum":["a"]}`, `{"type":"string"}`,
			[]string{"/f: the enum is gone: any value may come"},
		},
		"enum new": {
			`{"type":"string"}`, `{"type":"string","enum":["a"]}`,
			[]string{"/f: any value became an enum"},
		},
		"enum opened": {
			`{"type":"string","enum":["a"]}`, `{"type":"string","x-lockstep-known-values":["a"]}`,
			[]string{"/f: a closed enum became one that may grow, for which consumers have no branch"},
		},
		"known values closed": {
			`{"type":"string","x-lockstep-known-values":["a"]}`, `{"type":"string","enum":["a"]}`,
			[]string{"/f: known values became a closed enum"},
		},
		"known values widened": {
			`{"type":"string","x-lockstep-known-values":["a"]}`, `{"type":"string","x-lockstep-known-values":["a","b"]}`,
			nil,
		},
		"known values narrowed": {
			`{"type":"string","x-lockstep-known-values":["a","b"]}`, `{"type":"string","x-lockstep-known-values":["a"]}`,
			[]string{"/f: known values no longer hold b"},
		},
		"known values listed": {`{"type":"string"}`, `{"type":"string","x-lockstep-known-values":["a"]}`, nil},
		"minLength new": {
			`{"type":"string"}`, `{"type":"string","minLength":1}`,
			[]string{"/f: minLength nothing became 1"},
		},
		"minLength zero": {`{"type":"string"}`, `{"type":"string","minLength":0}`, nil},
		"minLength raised": {
			`{"type":"string","minLength":1}`, `{"type":"string","minLength":2}`,
			[]string{"/f: minLength 1 became 2"},
		},
		"minLength lowered": {`{"type":"string","minLength":2}`, `{"type":"string","minLength":1}`, nil},
		"maxLength new": {
			`{"type":"string"}`, `{"type":"string","maxLength":9}`,
			[]string{"/f: maxLength nothing became 9"},
		},
		"maxLength lowered": {
			`{"type":"string","maxLength":9}`, `{"type":"string","maxLength":8}`,
			[]string{"/f: maxLength 9 became 8"},
		},
		"maxLength raised": {`{"type":"string","maxLength":9}`, `{"type":"string","maxLength":10}`, nil},
		"minimum new": {
			`{"type":"integer"}`, `{"type":"integer","minimum":0}`,
			[]string{"/f: minimum nothing became 0"},
		},
		"minimum raised": {
			`{"type":"integer","minimum":-1}`, `{"type":"integer","minimum":0}`,
			[]string{"/f: minimum -1 became 0"},
		},
		"minimum lowered": {`{"type":"integer","minimum":0}`, `{"type":"integer","minimum":-1}`, nil},
		"minimum gone":    {`{"type":"integer","minimum":0}`, `{"type":"integer"}`, nil},
		"maximum lowered": {
			`{"type":"number","maximum":10}`, `{"type":"number","maximum":9.5}`,
			[]string{"/f: maximum 10 became 9.5"},
		},
		"exclusiveMinimum new": {
			`{"type":"number"}`, `{"type":"number","exclusiveMinimum":0}`,
			[]string{"/f: exclusiveMinimum nothing became 0"},
		},
		"pattern new": {
			`{"type":"string"}`, `{"type":"string","pattern":"^a"}`,
			[]string{"/f: pattern nothing became ^a"},
		},
		"pattern changed": {
			`{"type":"string","pattern":"^a"}`, `{"type":"string","pattern":"^b"}`,
			[]string{"/f: pattern ^a became ^b"},
		},
		"pattern gone": {`{"type":"string","pattern":"^a"}`, `{"type":"string"}`, nil},
		"uniqueItems new": {
			`{"type":"array","items":{"type":"string"}}`, `{"type":"array","uniqueItems":true,"items":{"type":"string"}}`,
			[]string{"/f: uniqueItems nothing became true"},
		},
		"minItems new": {
			`{"type":"array","items":{"type":"string"}}`, `{"type":"array","minItems":1,"items":{"type":"string"}}`,
			[]string{"/f: minItems nothing became 1"},
		},
		"items retyped": {
			`{"type":"array","items":{"type":"string"}}`, `{"type":"array","items":{"type":"integer"}}`,
			[]string{"/f/items: type string became integer"},
		},
		"items free": {
			`{"type":"array","items":{"type":"string"}}`, `{"type":"array"}`,
			[]string{"/f/items: the type of items is gone"},
		},
		"items bound": {
			`{"type":"array"}`, `{"type":"array","items":{"type":"string"}}`,
			[]string{"/f/items: items of any type became items of one type"},
		},
		"map values retyped": {
			`{"type":"object","additionalProperties":{"type":"string"}}`,
			`{"type":"object","additionalProperties":{"type":"integer"}}`,
			[]string{"/f/*: type string became integer"},
		},
		"map values free": {
			`{"type":"object","additionalProperties":{"type":"string"}}`, `{"type":"object"}`,
			[]string{"/f/*: the type of further fields is gone"},
		},
		"map values bound": {
			`{"type":"object"}`, `{"type":"object","additionalProperties":{"type":"string"}}`,
			[]string{"/f/*: fields of any type became fields of one type"},
		},
		"map gains a field": {
			`{"type":"object","additionalProperties":{"type":"string"}}`,
			`{"type":"object","additionalProperties":{"type":"string"},"properties":{"n":{"type":"integer"}}}`,
			[]string{"/f/n: type string became integer"},
		},
		"closed": {
			`{"type":"object"}`, `{"type":"object","additionalProperties":false}`,
			[]string{"/f/*: further fields are refused now"},
		},
		"map closed": {
			`{"type":"object","additionalProperties":{"type":"string"}}`, `{"type":"object","additionalProperties":false}`,
			[]string{"/f/*: further fields are refused now"},
		},
		"opened": {
			`{"type":"object","additionalProperties":false}`, `{"type":"object","additionalProperties":true}`,
			nil,
		},
		"nested field gone": {
			`{"type":"object","properties":{"a/b":{"type":"string"}}}`, `{"type":"object","properties":{}}`,
			[]string{"/f/a/b: the field is gone"},
		},
		"nested optional": {
			`{"type":"object","properties":{}}`, `{"type":"object","properties":{"n":{"type":"string"}}}`,
			nil,
		},
		"nested required": {
			`{"type":"object","properties":{}}`, `{"type":"object","required":["n"],"properties":{"n":{"type":"string"}}}`,
			[]string{"/f/n: a new field is required, which retained events lack"},
		},
		"nested became required": {
			`{"type":"object","properties":{"n":{"type":"string"}}}`,
			`{"type":"object","required":["n"],"properties":{"n":{"type":"string"}}}`,
			[]string{"/f/n: an optional field became required, which retained events may lack"},
		},
		"nested became optional": {
			`{"type":"object","required":["n"],"properties":{"n":{"type":"string"}}}`,
			`{"type":"object","properties":{"n":{"type":"string"}}}`,
			[]string{"/f/n: a required field became optional, which consumers rely on"},
		},
		"in a list of objects": {
			`{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}}}}`,
			`{"type":"array","items":{"type":"object","properties":{"name":{"type":"integer"}}}}`,
			[]string{"/f/items/name: type string became integer"},
		},
		"reference moved inline": {`{"$ref":"common.schema.json#/$defs/Name"}`, `{"type":"string","minLength":1}`, nil},
		"inline moved away": {
			`{"type":"string","minLength":1}`, `{"$ref":"https://lockstep.dev/schemas/events/common.schema.json#/$defs/Name"}`,
			nil,
		},
		"another reference": {
			`{"$ref":"common.schema.json#/$defs/Name"}`, `{"$ref":"common.schema.json#/$defs/Number"}`,
			[]string{"/f: type string became integer"},
		},
		"lost reference": {
			`{"$ref":"common.schema.json#/$defs/Name"}`, `{"$ref":"common.schema.json#/$defs/Nothing"}`,
			[]string{"/f: a reference leads nowhere"},
		},
		"circle of references": {
			`{"type":"string"}`, `{"$ref":"common.schema.json#/$defs/Circle"}`,
			[]string{"/f: a reference leads nowhere"},
		},
		"tree": {
			`{"$ref":"common.schema.json#/$defs/Tree"}`, `{"$ref":"common.schema.json#/$defs/Tree"}`,
			nil,
		},
		"two faults": {
			`{"type":"string","enum":["a"],"minLength":1}`, `{"type":"string","enum":["b"],"minLength":2}`,
			[]string{
				"/f: enum no longer holds a",
				"/f: enum also holds b, for which consumers have no branch",
				"/f: minLength 1 became 2",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const common = `{"$defs":{"Name":{"type":"string","minLength":1},"Number":{"type":"integer"},` +
				`"Circle":{"$ref":"#/$defs/Circle"},"Tree":{"type":"object","properties":` +
				`{"left":{"$ref":"#/$defs/Tree"},"right":{"$ref":"#/$defs/Tree"}}}}}`
			got := sentences(compat.Check(set(t, field(tc.old), common), set(t, field(tc.now), common)))
			require.Equal(t, append([]string{}, tc.want...), got)
		})
	}
}

func TestEventChanges(t *testing.T) {
	t.Parallel()
	released := set(t, field(`{"type":"string"}`), `{}`)
	for name, tc := range map[string]struct {
		pod  string
		want string
	}{
		"type gone": {
			"",
			"observed.pod.v1: /: the type is gone: consumers of v1 would break; add observed.pod.v2 instead",
		},
		"field gone": {
			`{"type":"object","required":["id"],"x-lockstep-subject":"observed.{agent}.pod",` +
				`"properties":{"id":{"type":"string"}}}`,
			"observed.pod.v1: /f: the field is gone: consumers of v1 would break; add observed.pod.v2 instead",
		},
		"another subject": {
			strings.Replace(field(`{"type":"string"}`), "observed.{agent}.pod", "observed.{agent}", 1),
			"observed.pod.v1: /: subject observed.{agent}.pod is gone: consumers of v1 would break; add observed.pod.v2 instead",
		},
		"no object": {
			`[]`,
			"observed.pod.v1: /: subject observed.{agent}.pod is gone: consumers of v1 would break; add observed.pod.v2 instead",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			breaks := compat.Check(released, set(t, tc.pod, `{}`))
			require.NotEmpty(t, breaks)
			require.Equal(t, tc.want, breaks[0].String())
		})
	}
	t.Run("new type", func(t *testing.T) {
		t.Parallel()
		require.Empty(t, compat.Check(set(t, "", `{}`), released))
	})
}

func TestFurtherSubjectIsCompatibleAndRemovedSubjectIsNot(t *testing.T) {
	t.Parallel()
	subjects := func(keyword string) document.Set {
		return set(t, `{"type":"object","properties":{},"x-lockstep-subject":`+keyword+`}`, `{}`)
	}
	for name, tc := range map[string]struct {
		old, now string
		want     []string
	}{
		"further subject":          {`"a.b"`, `["a.b", "a.c"]`, []string{}},
		"another order":            {`["a.b", "a.c"]`, `["a.c", "a.b"]`, []string{}},
		"list of the same subject": {`"a.b"`, `["a.b"]`, []string{}},
		"removed subject":          {`["a.b", "a.c"]`, `"a.b"`, []string{"/: subject a.c is gone"}},
		"replaced subject":         {`["a.b", "a.c"]`, `["a.c", "a.d"]`, []string{"/: subject a.b is gone"}},
		"no subject":               {`"a.b"`, `[]`, []string{"/: subject a.b is gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, sentences(compat.Check(subjects(tc.old), subjects(tc.now))))
		})
	}
}

func TestSharedChangeIsReportedForEachEvent(t *testing.T) {
	t.Parallel()
	const common = `{"$defs":{"Reference":{"type":"object","properties":{"name":{"type":"string"}}}}}`
	const use = `{"type":"object","properties":{"first":{"$ref":"common.schema.json#/$defs/Reference"},` +
		`"all":{"type":"array","items":{"$ref":"common.schema.json#/$defs/Reference"}}}}`
	breaks := compat.Check(set(t, use, common), set(t, use, strings.Replace(common, "string", "boolean", 1)))
	require.Equal(t, []string{
		"/all/items/name: type string became boolean", "/first/name: type string became boolean",
	}, sentences(breaks))
}

// Each field of each schema is removed and gets another type.
func TestEveryBreakingMutationIsRefused(t *testing.T) {
	t.Parallel()
	schemas, err := document.Read(os.DirFS("../../../schemas/events"))
	require.NoError(t, err)
	require.Empty(t, compat.Check(schemas, schemas))
	broken := 0
	for _, file := range schemas.Names() {
		if file == commonFile {
			continue
		}
		properties := schemas.Root(file).At("properties")
		for _, name := range properties.Keys() {
			for _, change := range []func(root map[string]any){
				func(root map[string]any) { delete(root["properties"].(map[string]any), name) },
				func(root map[string]any) { root["properties"].(map[string]any)[name] = map[string]any{"type": "null"} },
			} {
				var root map[string]any
				require.NoError(t, json.Unmarshal(schemas.Raw(file), &root))
				change(root)
				raw, err := json.Marshal(root)
				require.NoError(t, err)
				files := map[string][]byte{}
				for _, other := range schemas.Names() {
					files[other] = schemas.Raw(other)
				}
				files[file] = raw
				now, err := document.New(files)
				require.NoError(t, err)
				breaks := compat.Check(schemas, now)
				require.Len(t, breaks, 1, "%s without %s", file, name)
				require.Equal(t, "/"+name, breaks[0].Pointer)
				broken++
			}
		}
	}
	require.Positive(t, broken)
}

func FuzzCheckNeverPanics(f *testing.F) {
	const circle = `{"$defs":{"A":{"properties":{"a":{"$ref":"#/$defs/B"},"b":{"$ref":"#/$defs/B"}}},` +
		`"B":{"properties":{"a":{"$ref":"#/$defs/A"},"b":{"$ref":"#/$defs/A"}}}}}`
	for _, pod := range []string{
		field(`{"type":"string","enum":["a",1,null]}`),
		field(`{"$ref":"common.schema.json#/$defs/A"}`),
		`[]`,
		`null`,
		`{"properties":[],"required":{},"items":7}`,
		`{"$ref":"#"}`,
		`{"properties":{"a":{"$ref":"#"},"b":{"$ref":"#"}}}`,
		`{"minimum":1e400000000,"maximum":-0.0,"minLength":"x"}`,
		`{"additionalProperties":{"$ref":"#"}}`,
		`{"x-lockstep-subject":[null,"a.b"]}`,
	} {
		f.Add(pod, circle, `{"$defs":{"A":{"type":"string"}}}`)
	}
	f.Fuzz(func(t *testing.T, pod, commonOld, commonNow string) {
		old, errOld := document.New(map[string][]byte{podFile: []byte(pod), commonFile: []byte(commonOld)})
		now, errNow := document.New(map[string][]byte{podFile: []byte(pod), commonFile: []byte(commonNow)})
		if errOld != nil || errNow != nil {
			return
		}
		for _, b := range append(compat.Check(old, now), compat.Check(now, old)...) {
			require.NotEmpty(t, b.String())
		}
	})
}
