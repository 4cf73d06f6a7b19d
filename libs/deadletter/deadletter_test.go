package deadletter_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const cell = topology.Cell("local")

func newLetter(subject string, header nats.Header, data []byte) *nats.Msg {
	return deadletter.New(cell, deadletter.Origin{
		Service: "state", Consumer: "observed", Stream: "OBSERVED", Subject: subject, Sequence: 7,
	}, header, data, errors.New("no\ngood"))
}

func TestHeadersAboveTheLimitAreOmittedAndCounted(t *testing.T) {
	t.Parallel()
	header := nats.Header{
		"A-Large": {strings.Repeat("x", 10<<10)}, "B-Large": {strings.Repeat("x", 10<<10)}, "C-Small": {"c"},
		"ce-id": {"1"}, "ce-zz": {strings.Repeat("z", 4<<10)}, "Nats-Rollup": {"all"},
		"Lockstep-Dead-Omitted": {"99"}, "Lockstep-Dead-Subject": {"lockstep.local.desired.7.w"},
	}
	for range 10 {
		letter := newLetter("lockstep.local.observed.7.x", header, []byte("data"))
		require.Equal(t, nats.Header{
			"A-Large": header["A-Large"], "C-Small": {"c"}, "ce-id": {"1"}, "ce-zz": header["ce-zz"],
			deadletter.ReasonHeader: {"no good"}, deadletter.ConsumerHeader: {"observed"},
			deadletter.SubjectHeader: {"lockstep.local.observed.7.x"}, deadletter.StreamHeader: {"OBSERVED"},
			deadletter.SequenceHeader: {"7"}, deadletter.OmittedHeadersHeader: {"1"},
		}, letter.Header)
		require.Equal(t, "data", string(letter.Data))
	}
	require.Empty(t, newLetter("lockstep.local.observed.7.x", nats.Header{"ce-id": {"1"}}, nil).
		Header[deadletter.OmittedHeadersHeader])
}

func TestHeadersThatNATSClientsDoNotSendAreOmittedAndCounted(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "DEAD", Subjects: []string{"lockstep.local.dead.>"},
	})
	require.NoError(t, err)
	header := nats.Header{"!#$%&'*+.^_`|~-aZ0": {"kept"}}
	refused := 0
	for r := range rune(256) {
		name := "a" + string([]byte{byte(r)})
		m := &nats.Msg{Subject: "none", Header: nats.Header{name: {"x"}}}
		if errors.Is(js.Conn().PublishMsg(m), nats.ErrBadHeaderMsg) {
			header[name] = []string{"x"}
			refused++
		}
	}
	letter := newLetter("lockstep.local.observed.7.x", header, []byte("data"))
	require.Equal(t, strconv.Itoa(refused), letter.Header.Get(deadletter.OmittedHeadersHeader))
	require.Equal(t, "kept", letter.Header.Get("!#$%&'*+.^_`|~-aZ0"))
	require.NoError(t, deadletter.Publish(t.Context(), js, letter, "id"))
	require.Equal(t, "data", string(letter.Data))
}

func TestADeadLetterIsNoStatusOfTheServer(t *testing.T) {
	t.Parallel()
	letter := newLetter("lockstep.local.observed.7.x", nats.Header{"Status": {"404"}, "Description": {"x"}}, nil)
	require.NotContains(t, letter.Header, "Status")
	require.NotContains(t, letter.Header, "Description")
}

func TestSubjectAboveTheLimitIsTruncated(t *testing.T) {
	t.Parallel()
	for length := 990; length < 1010; length++ { // the cut falls on a dot, before and after it
		subject := "lockstep.local.observed.7." + strings.Repeat("x", length) + "." + strings.Repeat("y", 3000)
		letter := newLetter(subject, nil, nil)
		require.LessOrEqual(t, len(letter.Subject), 1024)
		require.True(t, strings.HasPrefix(letter.Subject, "lockstep.local.dead.state.observed.7.xxx"))
		require.False(t, strings.HasSuffix(letter.Subject, "."))
		require.Equal(t, subject, letter.Header.Get(deadletter.SubjectHeader))
		require.Empty(t, letter.Header.Get(deadletter.OmittedHeadersHeader))
	}
	letter := newLetter("lockstep.local.observed.7."+strings.Repeat("x", 9<<10), nil, nil)
	require.NotContains(t, letter.Header, deadletter.SubjectHeader)
	require.Equal(t, "1", letter.Header.Get(deadletter.OmittedHeadersHeader))
}

// largestMessages are as large as NATS allows on a stream.
func largestMessages() map[string]*nats.Msg {
	manyHeaders := nats.Header{}
	for i := range 8000 {
		manyHeaders[strconv.Itoa(i)] = []string{""}
	}
	return map[string]*nats.Msg{
		"one header of 65,400 bytes": {Header: nats.Header{"X": {strings.Repeat("x", 65_400)}}},
		"8,000 headers":              {Header: manyHeaders},
		"a subject of 4,000 bytes":   {Subject: strings.Repeat("x", 4000)},
		"a subject of 1,900 tokens":  {Subject: strings.TrimSuffix(strings.Repeat("x.", 1900), ".")},
		"the largest data":           {Data: make([]byte, topology.MaxMessageSize-100)},
	}
}

func TestDeadLetterOfEveryMessageOnAStreamIsStored(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	for _, family := range []string{topology.FamilyObserved, topology.FamilyDead} {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: family, Subjects: []string{cell.All(family)}, MaxMsgSize: topology.MaxMessageSize,
		})
		require.NoError(t, err)
	}
	for name, m := range largestMessages() {
		m.Subject = strings.TrimSuffix("lockstep.local.observed.7."+m.Subject, ".")
		_, err := js.PublishMsg(t.Context(), m)
		require.NoError(t, err, name)
		require.NoError(t, deadletter.Publish(t.Context(), js, newLetter(m.Subject, m.Header, m.Data), name), name)
	}
}

func TestDeadLetterThatNATSRefusesIsStoredWithoutContent(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "DEAD", Subjects: []string{"lockstep.local.dead.>"}, MaxMsgSize: 2048, AllowDirect: true,
	})
	require.NoError(t, err)
	letter := newLetter("lockstep.local.observed.7.x", nats.Header{
		"ce-id": {"1"}, "A": {strings.Repeat("x", 10<<10)}, "B": {strings.Repeat("x", 10<<10)},
	}, make([]byte, 3000))
	require.NoError(t, deadletter.Publish(t.Context(), js, letter, "id"))
	stream, err := js.Stream(t.Context(), "DEAD")
	require.NoError(t, err)
	m, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "3", m.Header.Get(deadletter.OmittedHeadersHeader))
	require.Equal(t, "3000", m.Header.Get(deadletter.OmittedHeader))
	require.Equal(t, "no good", m.Header.Get(deadletter.ReasonHeader))
	require.Equal(t, "id", m.Header.Get("Nats-Msg-Id"))
	require.Empty(t, m.Header["ce-id"])
	require.Empty(t, m.Data)
}
