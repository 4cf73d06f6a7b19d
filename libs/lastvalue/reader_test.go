package lastvalue_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestReaderLoadsAllPagesInOrderAndFollowsWithoutAConsumer(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	made := makeStream(t, js, 1, true)
	publishMany(t, js, 2500, 4<<10) // more than two pages
	publish(t, js, "value.a.7", "newer")
	publish(t, js, "value.b.1", "other")
	v, r := read(t, js, never)
	v.awaitReady(t, r)
	known, order := v.all()
	require.Len(t, known, 2500)
	require.Len(t, order, 2500, "nothing is read twice")
	require.True(t, slices.IsSorted(order))
	require.Equal(t, "newer", known["value.a.7"])

	for i := range 100 {
		publish(t, js, "value.a.live", strconv.Itoa(i))
	}
	v.await(t, "value.a.live", "99")
	require.True(t, r.UpToDate())
	known, _ = v.all()
	require.NotContains(t, known, "value.b.1")
	info, err := made.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Consumers)
}

// TestReaderLoadsWhatALaggingReplicaDoesNotHave lets a replica answer that has only the first message.
func TestReaderLoadsWhatALaggingReplicaDoesNotHave(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	makeStream(t, js, 1, false)
	_, err := js.Conn().Subscribe("$JS.API.DIRECT.GET."+stream, func(m *nats.Msg) {
		var request struct {
			Sequence uint64 `json:"seq"`
		}
		if err := json.Unmarshal(m.Data, &request); err != nil {
			t.Error(err)
		}
		if request.Sequence > 1 {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}}})
			return
		}
		_ = m.RespondMsg(&nats.Msg{Data: []byte("1"), Header: nats.Header{
			"Nats-Subject": {"value.a.1"}, "Nats-Sequence": {"1"}, "Nats-Last-Sequence": {"0"},
			"Nats-Time-Stamp": {"2026-01-02T15:04:05Z"},
		}})
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{
			"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-Last-Sequence": {"1"},
		}})
	})
	require.NoError(t, err)
	for _, i := range []string{"1", "2", "3"} {
		publish(t, js, "value.a."+i, i)
	}
	publish(t, js, "value.b.last", "")
	v, r := read(t, js, never)
	v.awaitReady(t, r)
	known, _ := v.all()
	require.Equal(t, map[string]string{"value.a.1": "1", "value.a.2": "2", "value.a.3": "3"}, known)
	publish(t, js, "value.a.4", "4")
	v.await(t, "value.a.4", "4")
}

func TestReaderFindsWhatWasNotAnnounced(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	makeStream(t, js, 1, true)
	v, r := readLive(t, js, 10*time.Millisecond, "silent.>")
	v.awaitReady(t, r)
	publish(t, js, "value.a.1", "x")
	v.await(t, "value.a.1", "x")
	v.mu.Lock()
	defer v.mu.Unlock()
	require.Equal(t, 1, v.begun, "it does not read everything again")
}

func TestReaderIgnoresInvalidAnnouncements(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	makeStream(t, js, 1, true)
	v, r := read(t, js, never)
	v.awaitReady(t, r)
	for _, sequence := range []string{"", "x", "18446744073709551615"} {
		require.NoError(t, js.Conn().PublishMsg(&nats.Msg{
			Subject: "live.a.1", Data: []byte("forged"), Header: nats.Header{"Nats-Sequence": {sequence}},
		}))
	}
	publish(t, js, "value.a.1", "x")
	v.await(t, "value.a.1", "x")
	require.True(t, r.UpToDate())
}

func TestReaderReportsALostResponse(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	makeStream(t, js, 1, false)
	publish(t, js, "value.a.1", "1")
	_, err := js.Conn().Subscribe("$JS.API.DIRECT.GET."+stream, func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{
			"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-Last-Sequence": {"1"},
		}})
	})
	require.NoError(t, err)
	_, r := read(t, js, never)
	require.Eventually(t, func() bool {
		err := r.Check(t.Context())
		return err != nil && err.Error() == "stream VALUES is not loaded yet: response to $JS.API.DIRECT.GET.VALUES: "+
			"a message is missing: 0 is followed by one after 1"
	}, timeout, time.Millisecond)
}

// TestReaderReadsAcrossAccounts reads from an account without the stream, under another prefix of the API.
func TestReaderReadsAcrossAccounts(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "nats-server.conf")
	require.NoError(t, os.WriteFile(config, []byte(`
jetstream {}
accounts {
  CONTROL {
    jetstream: enabled
    users: [{user: control, password: control}]
    exports: [
      {service: "$JS.API.STREAM.INFO.VALUES", accounts: [SERVICE]}
      {service: "$JS.API.STREAM.MSG.GET.VALUES", accounts: [SERVICE]}
      {service: "$JS.API.DIRECT.GET.VALUES", accounts: [SERVICE], response_type: stream, threshold: "1m"}
      {stream: "live.>", accounts: [SERVICE]}
    ]
  }
  SERVICE {
    jetstream: enabled
    users: [{user: service, password: service}]
    imports: [
      {service: {account: CONTROL, subject: "$JS.API.STREAM.INFO.VALUES"}, to: "$JS.OTHER.API.STREAM.INFO.VALUES"}
      {service: {account: CONTROL, subject: "$JS.API.STREAM.MSG.GET.VALUES"}, to: "$JS.OTHER.API.STREAM.MSG.GET.VALUES"}
      {service: {account: CONTROL, subject: "$JS.API.DIRECT.GET.VALUES"}, to: "$JS.OTHER.API.DIRECT.GET.VALUES"}
      {stream: {account: CONTROL, subject: "live.>"}}
    ]
  }
}
`), 0o600))
	server := natstest.Start(t, natsd.Options{ConfigFile: config})
	control := natstest.JetStream(t, server, nats.UserInfo("control", "control"))
	makeStream(t, control, 1, true)
	publishMany(t, control, 1500, 10)
	service := natstest.Connect(t, server, nats.UserInfo("service", "service"))
	js, err := jetstream.NewWithAPIPrefix(service, "$JS.OTHER.API")
	require.NoError(t, err)
	v, r := read(t, js, 10*time.Millisecond)
	v.awaitReady(t, r)
	known, _ := v.all()
	require.Len(t, known, 1500)
	publish(t, control, "value.a.live", "x")
	v.await(t, "value.a.live", "x")
	require.NoError(t, server.Restart())
	natstest.Reconnected(t, control.Conn())
	publish(t, control, "value.a.live", "y")
	v.await(t, "value.a.live", "y")
}

// TestReaderFollowsWhenTheLeaderChanges reads at a server that stays, while the stream's leader stops.
func TestReaderFollowsWhenTheLeaderChanges(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t)
	made := makeStream(t, cluster.Connect(t), 3, true)
	info, err := made.Info(natstest.Context(t))
	require.NoError(t, err)
	leader := info.Cluster.Leader
	js := cluster.Connect(t, leader)
	for i := range 100 {
		publish(t, js, "value.a."+strconv.Itoa(i), "x")
	}
	v, r := read(t, js, 100*time.Millisecond)
	v.awaitReady(t, r)
	known, _ := v.all()
	require.Len(t, known, 100, "all that is stored is read, whichever replica responds")
	cluster.Stop(leader)
	for i := range 100 {
		publish(t, js, "value.a."+strconv.Itoa(i), "y")
	}
	for i := range 100 {
		v.await(t, "value.a."+strconv.Itoa(i), "y")
	}
	require.Eventually(t, r.UpToDate, timeout, time.Millisecond)
}
