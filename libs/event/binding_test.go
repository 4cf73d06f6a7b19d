package event_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
)

func newEvent(t testing.TB) event.Event {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type: "dev.lockstep.observed.tick.v1", Source: event.AgentSource("local", 7, "watcher"), Subject: "tick", ID: "a/b c",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("", 3600)),
	}, map[string]string{"cluster_uid": "u"})
	require.NoError(t, err)
	return e
}

func TestBinaryModeFollowsTheNATSBinding(t *testing.T) {
	t.Parallel()
	e := newEvent(t)
	e.SetExtension("note", "Euro € 😀")
	msg, err := event.Encode(e, "lockstep.local.observed.7.tick")
	require.NoError(t, err)
	require.Equal(t, nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"a/b%20c"}, "ce-type": {"dev.lockstep.observed.tick.v1"},
		"ce-source": {"/lockstep/local/agents/7/watcher"}, "ce-subject": {"tick"}, "ce-datacontenttype": {"application/json"},
		"ce-dataschema": {"https://lockstep.dev/schemas/events/observed.tick.v1.schema.json"},
		"ce-time":       {"2026-01-02T02:04:05.678Z"}, "ce-note": {"Euro%20%E2%82%AC%20%F0%9F%98%80"},
	}, msg.Header)
	require.JSONEq(t, `{"cluster_uid":"u"}`, string(msg.Data))
}

func TestRoundTripInBothModes(t *testing.T) {
	t.Parallel()
	e := newEvent(t)
	e.SetExtension(event.TraceParent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	msg, err := event.Encode(e, "s")
	require.NoError(t, err)
	require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", msg.Header.Get("traceparent"))
	back, err := event.Decode(msg.Header, msg.Data)
	require.NoError(t, err)
	require.Equal(t, e.String(), back.String())

	body, err := event.MarshalStructured(e)
	require.NoError(t, err)
	back, err = event.Decode(nats.Header{"content-type": {"Application/CloudEvents+json; charset=utf-8"}}, body)
	require.NoError(t, err)
	require.Equal(t, e.String(), back.String())
}

func TestDecodeRejectsInvalidMessages(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		header nats.Header
		want   string
	}{
		"no CloudEvent":     {nats.Header{}, "not a CloudEvent"},
		"missing id":        {nats.Header{"ce-specversion": {"1.0"}, "ce-type": {"t"}, "ce-source": {"/s"}}, "id"},
		"two ids":           {nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1", "2"}}, "2 values"},
		"overlong escape":   {nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"%C0%A0"}}, "invalid UTF-8"},
		"truncated escape":  {nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"a%2"}}, "ends inside"},
		"bad escape":        {nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"a%zz"}}, "bad percent escape"},
		"bad time":          {nats.Header{"ce-specversion": {"1.0"}, "ce-time": {"yesterday"}}, "RFC 3339"},
		"bad extension":     {nats.Header{"ce-specversion": {"1.0"}, "ce-bad_name": {"x"}}, "extension"},
		"other specversion": {nats.Header{"ce-specversion": {"2.0"}}, "must be \"1.0\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := event.Decode(tc.header, nil)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestDecodeAcceptsOlderBindings(t *testing.T) {
	t.Parallel()
	e, err := event.Decode(nats.Header{
		"CE-SpecVersion": {"1.0"}, "Ce-Id": {`"quoted \"id\" %41"`}, "ce-type": {"t"}, "ce-source": {"/s"},
	}, nil)
	require.NoError(t, err)
	require.Equal(t, `quoted "id" A`, e.ID())
}

func TestNewRejectsIncompleteEvents(t *testing.T) {
	t.Parallel()
	_, err := event.New(event.Attributes{Type: "t", Source: "/s", Subject: "s", Time: time.Now()}, nil)
	require.ErrorContains(t, err, "id")
	_, err = event.New(event.Attributes{Type: "t", Source: "/s", Subject: "s", ID: "1", Time: time.Now()}, func() {})
	require.ErrorContains(t, err, "marshal data")
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("id", "subject", "Euro € 😀", []byte(`{"a":1}`))
	f.Add(`"quoted\"`, "%", "a b", []byte(nil))
	f.Fuzz(func(t *testing.T, id, subject, note string, data []byte) {
		e := newEvent(t)
		e.SetID(id)
		e.SetSubject(subject)
		e.SetExtension("note", note)
		e.DataEncoded = data
		msg, err := event.Encode(e, "s")
		if err != nil {
			return
		}
		for name, values := range msg.Header {
			require.False(
				t, strings.ContainsFunc(values[0], func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }), "%s: %q",
				name, values[0],
			)
		}
		back, err := event.Decode(msg.Header, msg.Data)
		require.NoError(t, err)
		require.Equal(t, e.ID(), back.ID())
		require.Equal(t, e.Subject(), back.Subject())
		if note != "" {
			require.Equal(t, note, back.Extensions()["note"])
		}
		require.Equal(t, string(data), string(back.DataEncoded))
	})
}

func FuzzDecodeNeverPanics(f *testing.F) {
	f.Add("ce-id", "1", []byte("{}"))
	f.Fuzz(func(_ *testing.T, name, value string, data []byte) {
		header := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-type": {"t"}, "ce-source": {"/s"}, name: {value}}
		_, _ = event.Decode(header, data)
	})
}
