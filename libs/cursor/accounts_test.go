package cursor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

// accounts has a stream in one account, and readers in another. Those import what they need as services.
const accounts = `
port: -1
jetstream {store_dir: %q}
accounts {
  STREAMS {
    jetstream: enabled
    users: [{user: owner, password: x}]
    exports: [
      {service: "$JS.API.STREAM.INFO.FACTS"}
      {service: "$JS.API.STREAM.MSG.GET.FACTS"}
      {service: "$JS.API.DIRECT.GET.FACTS"}
      {service: "$JS.API.CONSUMER.MSG.NEXT.FACTS.*", response_type: stream}
      {service: "$JS.API.CONSUMER.INFO.FACTS.*"}
      {service: nowhere}
    ]
  }
  READERS {
    users: [{user: reader, password: x}]
    imports: [
      {service: {account: STREAMS, subject: "$JS.API.STREAM.INFO.FACTS"}}
      {service: {account: STREAMS, subject: "$JS.API.STREAM.MSG.GET.FACTS"}}
      {service: {account: STREAMS, subject: "$JS.API.DIRECT.GET.FACTS"}}
      {service: {account: STREAMS, subject: "$JS.API.CONSUMER.MSG.NEXT.FACTS.*"}}
      {service: {account: STREAMS, subject: "$JS.API.CONSUMER.INFO.FACTS.*"}}
      # Without it the server itself answers requests of this account.
      {service: {account: STREAMS, subject: nowhere}, to: "$JS.API.INFO"}
    ]
  }
}
`

// acrossAccounts creates consumers in the account of the stream for readers in another.
type acrossAccounts struct {
	owner, reader jetstream.JetStream
	created       *atomic.Int64
}

func (a acrossAccounts) Reader(ctx context.Context, r topology.ReaderConsumer) (jetstream.Consumer, error) {
	config := r.Config("test")
	config.Name = ""
	a.created.Add(1)
	made, err := a.owner.CreateConsumer(ctx, r.Stream, config)
	if err != nil {
		return nil, err
	}
	return a.reader.Consumer(ctx, r.Stream, made.CachedInfo().Name)
}

func (acrossAccounts) EndsAtEmptyMessage() bool { return true }

// accountsFixture has a stream in one account, and makes readers in another.
type accountsFixture struct {
	*fixture

	server *natsd.Server
	owner  jetstream.JetStream
	// created counts the created consumers.
	created *atomic.Int64
}

func newAccounts(t *testing.T) accountsFixture {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, accounts, filepath.Join(dir, "store")), 0o600))
	server := natstest.Start(t, natsd.Options{ConfigFile: file, StoreDir: filepath.Join(dir, "store")})
	owner := natstest.JetStream(t, server, nats.UserInfo("owner", "x"))
	createStream(t, owner, stream, "lockstep.local.fact.>")
	f := newFixtureOn(t, pgtest.Database(t))
	f.js = owner
	return accountsFixture{fixture: f, server: server, owner: owner, created: &atomic.Int64{}}
}

func (a accountsFixture) consumer(change func(*cursor.Config[string])) *cursor.Consumer[string] {
	a.t.Helper()
	return a.fixture.consumer(func(c *cursor.Config[string]) {
		c.JetStream = natstest.JetStream(a.t, a.server, nats.UserInfo("reader", "x"))
		c.Consumers = acrossAccounts{owner: a.owner, reader: c.JetStream, created: a.created}
		c.Retry = retry.Policy{Min: timeout, Max: timeout} // a failure would end the test
		change(c)
	})
}

// The server ends the response to a pull request across accounts at a message without payload and headers. Anybody who
// may write to the stream can publish one.
func TestEmptyMessagesDoNotStopAReaderInAnotherAccount(t *testing.T) {
	t.Parallel()
	f := newAccounts(t)
	for range 20 {
		f.publish(3)
		_, err := f.owner.Publish(t.Context(), subject, nil)
		require.NoError(t, err)
	}
	f.publish(1)

	c := f.consumer(func(c *cursor.Config[string]) { c.Batch = 10 })
	f.run(c)

	require.Eventually(t, func() bool { return len(f.handled()) == 81 }, timeout/3, 10*time.Millisecond)
	result, err := c.Replay(t.Context(), f.pool, cursor.SequenceRange{From: 1, To: 81}, func(uint64) {})
	require.NoError(t, err)
	require.Equal(t, uint64(81), result.Handled)
	require.LessOrEqual(t, f.created.Load(), int64(4), "most empty messages need no new consumer")
}
