package deadletter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// letter is a message as a consumer puts it on DEAD.
func letter(subject, text string, more ...string) *nats.Msg {
	m := &nats.Msg{Subject: cell.Dead("state", subject), Data: []byte(text), Header: nats.Header{
		"ce-id": {
			"id-" + text,
		},
		"Lockstep-Dead-Reason":   {"no good"},
		"Lockstep-Dead-Consumer": {"applied"},
		"Lockstep-Dead-Subject":  {subject},
		"Lockstep-Dead-Stream":   {"APPLIED"},
		"Lockstep-Dead-Sequence": {"12"},
		"Nats-Msg-Id":            {"applied/" + text},
	}}
	for i := 0; i+1 < len(more); i += 2 {
		m.Header.Set(more[i], more[i+1])
	}
	return m
}

func read(m *nats.Msg) deadletter.Letter {
	return deadletter.Read(cell, stored.Message{
		Subject: m.Subject, Header: m.Header, Data: m.Data, Sequence: 3, Stored: time.Unix(5, 0),
	})
}

func TestReadLetterAndOriginal(t *testing.T) {
	t.Parallel()
	subject := cell.Applied(7, "w")
	l := read(letter(subject, "x"))
	require.Equal(t, deadletter.Letter{
		Sequence:       3,
		Stored:         time.Unix(5, 0),
		Service:        "state",
		Consumer:       "applied",
		Reason:         "no good",
		Subject:        subject,
		Stream:         "APPLIED",
		StreamSequence: 12,
		Header:         nats.Header{"ce-id": {"id-x"}},
		Data:           []byte("x"),
	}, l)
	original, err := l.Original(cell)
	require.NoError(t, err)
	require.Equal(t, &nats.Msg{Subject: subject, Header: nats.Header{"ce-id": {"id-x"}}, Data: []byte("x")}, original)

	bare := read(&nats.Msg{Subject: cell.Dead("state", subject)})
	require.Equal(t, subject, bare.Subject, "a letter without headers has its original subject")

	for name, m := range map[string]*nats.Msg{
		"data of 12 bytes was too large":         letter(subject, "", "Lockstep-Dead-Omitted", "12"),
		"3 of its headers could not be stored":   letter(subject, "x", "Lockstep-Dead-Omitted-Headers", "3"),
		"it names no subject of this cell":       letter("lockstep.another.applied.7.w", "x"),
		"cannot be retried: it names no subject": letter(cell.Dead("state", subject), "x"),
		"names no subject of this cell":          letter("$SYS.REQ.SERVER.PING", "x"),
	} {
		_, err := read(m).Original(cell)
		require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err))
		require.ErrorContains(t, err, name)
	}
}

func FuzzReadNeverPanics(f *testing.F) {
	f.Add("lockstep.local.dead.state.applied.7.w", "lockstep.local.applied.7.w", "1", "x")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, subject, original, number, other string) {
		l := read(&nats.Msg{Subject: subject, Header: nats.Header{
			"Lockstep-Dead-Subject": {
				original,
			},
			"Lockstep-Dead-Sequence":        {number},
			"Lockstep-Dead-Omitted":         {number},
			"Lockstep-Dead-Omitted-Headers": {number},
			other:                           {other},
		}})
		if m, err := l.Original(cell); err == nil {
			parsed, err := topology.Parse(m.Subject)
			require.NoError(t, err)
			require.Equal(t, cell, parsed.Cell)
		}
	})
}

func TestLetterIsACopyOfItsOriginalOnly(t *testing.T) {
	t.Parallel()
	original := stored.Message{
		Subject: cell.ObservedTick(7), Header: nats.Header{"ce-id": {"1"}, "Nats-Rollup": {"all"}}, Data: []byte("x"),
		Sequence: 12,
	}
	letter := func() deadletter.Letter {
		return read(deadletter.New(cell, deadletter.Origin{
			Service: "deploys", Consumer: "workloads", Stream: "OBSERVED", Subject: original.Subject, Sequence: 12,
		}, original.Header, original.Data, errors.New("no good")))
	}
	require.True(t, letter().IsCopyOf(cell, original))
	require.True(t, read(deadletter.New(cell, deadletter.Origin{Service: "deploys", Subject: "lockstep.local.x.y"}, nil,
		nil, errors.New(""))).IsCopyOf(cell, stored.Message{Subject: "lockstep.local.x.y", Data: []byte{}}), "empty")
	for name, forge := range map[string]func(l *deadletter.Letter){
		"subject":        func(l *deadletter.Letter) { l.Subject = cell.ObservedTick(8) },
		"data":           func(l *deadletter.Letter) { l.Data = []byte("y") },
		"header":         func(l *deadletter.Letter) { l.Header["ce-id"] = []string{"2"} },
		"another header": func(l *deadletter.Letter) { l.Header["ce-type"] = []string{"x"} },
		"sequence":       func(l *deadletter.Letter) { l.StreamSequence = 13 },
	} {
		forged := letter()
		forge(&forged)
		require.False(t, forged.IsCopyOf(cell, original), name)
	}
}
