package canonical_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/canonical"
)

type inner struct {
	Name string     `json:"name"`
	Kind string     `json:"kind"`
	When time.Time  `json:"when"`
	Gone *time.Time `json:"gone,omitempty"`
}

type outer struct {
	Count  int               `json:"count,omitempty"`
	Flag   bool              `json:"flag,omitempty"`
	Inner  inner             `json:"inner"`
	Labels map[string]string `json:"labels,omitempty"`
	List   []inner           `json:"list,omitempty"`
	Maybe  *int              `json:"maybe,omitempty"`
	Note   string            `json:"note,omitempty"`
	Sure   bool              `json:"sure"`
}

func shape(tb testing.TB) *canonical.Shape {
	tb.Helper()
	s, err := canonical.Of(outer{}, map[string]canonical.Rule{
		"inner.name":  {NotEmpty: true, Keep: true},
		"inner.when":  {Keep: true},
		"note":        {Keep: true},
		"inner.kind":  {OneOf: []string{"a", "b"}},
		"list[].kind": {NotEmpty: true},
	})
	require.NoError(tb, err)
	return s
}

func TestWhatMarshalWritesIsRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 120_000_000, time.UTC)
	some := inner{Name: "n", Kind: "a", When: at}
	other := some
	other.Name, other.Kind, other.Gone = "tab\t \"quote\" back\\ <b> & ü\n", "x", &at
	s := shape(t)
	for _, o := range []outer{
		{Inner: some},
		{Inner: some, Count: 7, Flag: true, Labels: map[string]string{"b": "<", "a": "", "": "ü"}, List: []inner{other, other}, Maybe: new(0), Note: "x", Sure: true},
		{Inner: some, Count: 999_999_999_999_999_999, List: []inner{other}, Maybe: new(12)},
	} {
		data, err := json.Marshal(o)
		require.NoError(t, err)
		kept := make([]string, s.Slots())
		require.True(t, s.Read(string(data), kept), string(data))
		require.Equal(t, "n", kept[s.Slot("inner.name")])
		require.Equal(t, "2026-03-04T05:06:07.12Z", kept[s.Slot("inner.when")])
		require.Equal(t, o.Note, kept[s.Slot("note")])
	}
}

func TestWhatIsSpelledOtherwiseIsNot(t *testing.T) {
	t.Parallel()
	s := shape(t)
	const good = `{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`
	require.True(t, s.Read(good, make([]string, s.Slots())))
	for _, bad := range []string{
		``, `{}`, `null`, good + ` `, ` ` + good, good[:len(good)-1], good + `}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"}}`,                                          // lacks one
		`{"sure":false,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"}}`,                             // out of order
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false,"more":1}`,                    // unknown
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false,"sure":false}`,                // twice
		`{"Inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                             // another case
		`{"inner":{"name":"","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                              // empty
		`{"inner":{"name":"\u006e","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                        // needless escape
		`{"inner":{"name":"n","kind":"c","when":"2026-03-04T05:06:07Z"},"sure":false}`,                             // none of those
		`{"inner":{"name":"n","kind":"a","when":"2026-02-30T05:06:07Z"},"sure":false}`,                             // no day
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07.10Z"},"sure":false}`,                          // needless digit
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07.Z"},"sure":false}`,                            // no digits
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07,1Z"},"sure":false}`,                           // comma
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07.1234567891Z"},"sure":false}`,                  // too fine
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07+00:00"},"sure":false}`,                        // no Z
		`{"count":0,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                   // left out when 0
		`{"count":-1,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                  // negative
		`{"count":01,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                  // no number
		`{"count":1.0,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                 // fraction
		`{"count":9223372036854775808,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`, // too high
		`{"flag":false,"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`,                // left out when false
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"labels":{},"sure":false}`,                 // left out when empty
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"labels":{"b":"","a":""},"sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"labels":{"a":"","a":""},"sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"labels":{"a":""`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"list":[],"sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"list":[null],"sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"list":[{"name":"","kind":"","when":"2026-03-04T05:06:07Z"}],"sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"note":"","sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"note":"\u0000","sure":false}`,
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"note":"\ud800","sure":false}`,
		"{\"inner\":{\"name\":\"n\",\"kind\":\"a\",\"when\":\"2026-03-04T05:06:07Z\"},\"note\":\"\xff\",\"sure\":false}",
		"{\"inner\":{\"name\":\"n\",\"kind\":\"a\",\"when\":\"2026-03-04T05:06:07Z\"},\"note\":\"\u2028\",\"sure\":false}",
		"{\"inner\":{\"name\":\"n\",\"kind\":\"a\",\"when\":\"2026-03-04T05:06:07Z\"},\"note\":\"<\",\"sure\":false}",
		`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":null}`,
	} {
		require.False(t, s.Read(bad, make([]string, s.Slots())), bad)
	}
}

// FuzzWhatIsReadIsCanonical: what is accepted is what Marshal makes of what Unmarshal reads.
func FuzzWhatIsReadIsCanonical(f *testing.F) {
	f.Add([]byte(`{"inner":{"name":"n","kind":"a","when":"2026-03-04T05:06:07Z"},"sure":false}`))
	f.Add([]byte(`{"count":1,"flag":true,"inner":{"name":"n","kind":"b","when":"2026-03-04T05:06:07.5Z","gone":"0000-01-01T00:00:00Z"},"labels":{"a":"\u003c"},"list":[{"name":"","kind":"x","when":"9999-12-31T23:59:59Z"}],"maybe":0,"note":"ü","sure":true}`))
	s := shape(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		kept := make([]string, s.Slots())
		if !s.Read(string(data), kept) {
			return
		}
		var o outer
		require.NoError(t, json.Unmarshal(data, &o))
		again, err := json.Marshal(o)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, again), "%s is written as %s", data, again)
		require.Equal(t, o.Inner.Name, kept[s.Slot("inner.name")])
		require.Equal(t, o.Note, kept[s.Slot("note")])
		require.Contains(t, []string{"a", "b"}, o.Inner.Kind)
	})
}

func TestOfRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		example any
		rules   map[string]canonical.Rule
	}{
		"a float": {struct {
			F float64 `json:"f"`
		}{}, nil},
		"any": {struct {
			F any `json:"f"`
		}{}, nil},
		"null": {struct {
			F *int `json:"f"`
		}{}, nil},
		"no name": {struct{ F int }{}, nil},
		"omitzero": {struct {
			F int `json:"f,omitzero"`
		}{}, nil},
		"a rule for nothing":       {outer{}, map[string]canonical.Rule{"inner.nothing": {NotEmpty: true}}},
		"a rule that cannot be":    {outer{}, map[string]canonical.Rule{"count": {NotEmpty: true}}},
		"keeping what is repeated": {outer{}, map[string]canonical.Rule{"list[].name": {Keep: true}}},
	} {
		_, err := canonical.Of(test.example, test.rules)
		require.Error(t, err, name)
	}
}

func BenchmarkRead(b *testing.B) {
	s := shape(b)
	data, err := json.Marshal(outer{Inner: inner{Name: "name", Kind: "a", When: time.Unix(1, 0).UTC()}, Labels: map[string]string{"a": "b", "c": "d"}})
	require.NoError(b, err)
	text, kept := string(data), make([]string, s.Slots())
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if !s.Read(text, kept) {
			b.Fatal("refused")
		}
	}
}
