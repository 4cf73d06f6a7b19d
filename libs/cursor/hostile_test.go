package cursor_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/tools/testkit/natstest"
)

// hostileMessages are messages whose headers a client, a server or a reader could take for its own.
func hostileMessages() map[string]natstest.RawMessage {
	messages := map[string]natstest.RawMessage{}
	for name, lines := range map[string]string{
		"no header":               "",
		"status 100":              "Status: 100\r\n",
		"status 400":              "Status: 400\r\n",
		"status 404":              "Status: 404\r\n",
		"status 503":              "Status: 503\r\n",
		"consumer deleted":        "Status: 409\r\nDescription: Consumer Deleted\r\n",
		"no colon":                "x\r\n",
		"a sequence":              "Nats-Sequence: x\r\n",
		"a time":                  "Nats-Time-Stamp: 2001-01-01T00:00:00Z\r\n",
		"a subject":               "Nats-Subject: y\r\n",
		"a name with a space":     "a b: x\r\n",
		"a name with a slash":     "a/b: x\r\n",
		"a name with other bytes": "\xff\x01: x\r\n",
	} {
		m := natstest.RawMessage{Subject: subject, Header: "NATS/1.0\r\n" + lines + "\r\n"}
		messages[name] = m
		m.Data = "bad"
		messages[name+", with data"] = m
	}
	messages["a status in the first line"] = natstest.RawMessage{Subject: subject, Header: "NATS/1.0 503\r\n\r\n"}
	return messages
}

// refuseEmpty refuses hostile messages.
func refuseEmpty(m *cursor.Message[string]) error {
	if len(m.Data) == 0 {
		return errors.New("no data")
	}
	return refuseBad(m)
}

func TestHostileHeadersStopNoReader(t *testing.T) {
	t.Parallel()
	for name, m := range hostileMessages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			createStream(t, f.js, "DEAD", "lockstep.local.dead.>")
			newReader := func() *cursor.Consumer[string] {
				return f.consumer(func(c *cursor.Config[string]) { c.Decode = refuseEmpty })
			}
			stop := f.run(newReader())
			natstest.PublishRaw(t, f.server.ClientURL(), "", "", m)
			f.cursorAt(1, 1)
			stop()
			f.run(newReader())
			f.publish(1)
			f.awaitHandled(numbers(1))
			f.cursorAt(1, 2)
			dead := f.dead(1)
			require.Equal(t, m.Data, string(dead.Data))
			require.Empty(t, dead.Header["Status"])
			require.Empty(t, dead.Header["Description"])
		})
	}
}

func TestHostileHeadersStopNoReaderInAnotherAccount(t *testing.T) {
	t.Parallel()
	a := newAccounts(t)
	createStream(t, a.owner, "DEAD", "lockstep.local.dead.>")
	f := a.fixture
	messages := hostileMessages()
	newReader := func() *cursor.Consumer[string] {
		return a.consumer(func(c *cursor.Config[string]) {
			c.Decode = func(*cursor.Message[string]) error { return nil }
			c.Batch = 10
		})
	}
	stop := f.run(newReader())
	sequence := int64(0)
	for name, m := range messages {
		natstest.PublishRaw(t, a.server.ClientURL(), "owner", "x", m)
		sequence++
		f.cursorAt(1, sequence)
		stop()
		stop = f.run(newReader())
		_, err := a.owner.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: []byte("good")})
		require.NoError(t, err, name)
		sequence++
		f.cursorAt(1, sequence)
	}
}
