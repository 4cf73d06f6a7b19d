package natsauth_test

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
)

func TestOperatorReadsEveryStreamButTheDirectory(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	js, err := jetstream.New(c.static(t, natsauth.PrincipalOperator))
	require.NoError(t, err)
	c.settle(t)

	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamDirectory {
			continue
		}

		_, err = js.Stream(testContext(t), stream.Name)
		require.NoError(t, err)

		reader, found := stored.Reader{JetStream: js, Stream: stream.Name}, ""

		require.NoError(t, reader.Read(testContext(t), cellName.All(stream.Family), 1, 99, func(m stored.Message) error {
			found = m.Subject

			return nil
		}))
		require.Equal(t, cellName.Prefix(stream.Family)+".settled", found)

		_, err = reader.Get(testContext(t), 1)
		require.NoError(t, err)
	}

	_, err = c.js.Publish(testContext(t), "lockstep.local.directory.agent.7", []byte("x"))
	require.NoError(t, err)
	directory := stored.Reader{JetStream: js, Stream: "DIRECTORY"}
	agent, err := directory.Last(testContext(t), "lockstep.local.directory.agent.7")
	require.NoError(t, err)
	require.Equal(t, "x", string(agent.Data))
}

// TestKeysOfAnOlderVersionWorkAfterInit starts a server with the configuration for a folder in which all keys were once
// together, and whose configuration was of another version.
func TestKeysOfAnOlderVersionWorkAfterInit(t *testing.T) {
	t.Parallel()

	options := natsauth.Options{Cell: cellName, ListenPort: -1, StoreDir: t.TempDir()}
	dir := t.TempDir()
	report, err := natsauth.Init(dir, options)
	require.NoError(t, err)

	names := []string{
		natsauth.PrincipalDeploys, natsauth.PrincipalRunners, natsauth.PrincipalAdmission, natsauth.PrincipalGateway,
		natsauth.PrincipalRouter, natsauth.PrincipalRelay, natsauth.PrincipalOperator,
	}
	for _, name := range names {
		require.NoError(t, os.Rename(natsauth.SeedFile(dir, name), filepath.Join(dir, "keys", name+".seed")))
	}

	require.NoError(t, os.WriteFile(report.ConfigFile, []byte("# of another version"), 0o600))
	report, err = natsauth.Init(dir, options)
	require.NoError(t, err)
	require.True(t, report.RestartNeeded())

	c := &cell{dir: dir, server: startServer(t, dir)}
	state, err := jetstream.New(c.static(t, natsauth.PrincipalState))
	require.NoError(t, err)
	createStreams(t, state)

	for _, name := range names {
		js, err := jetstream.New(c.static(t, name))
		if name == natsauth.PrincipalRelay {
			js, err = jetstream.NewWithAPIPrefix(c.static(t, name), natsauth.ControlAPIPrefix)
		}

		require.NoError(t, err)

		stream := map[string]string{natsauth.PrincipalRouter: "KV_CELLS", natsauth.PrincipalOperator: "AUDIT"}[name]
		_, err = js.Stream(testContext(t), cmp.Or(stream, "DIRECTORY"))
		require.NoError(t, err, name)
	}
}

// TestStaticPrincipalsCannotExceedTheirPermissions tries, as each principal, what only others may do.
func TestStaticPrincipalsCannotExceedTheirPermissions(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	c.fillStreams(t)
	before := c.foreign(t)

	for name, forbidden := range map[string]struct{ publish, subscribe []string }{
		natsauth.PrincipalState: {
			publish: []string{
				"lockstep.other.desired.18.w", "lockstep.local.audit.18.requests", "lockstep.local.deploy.c.n.k.w.started",
				"lockstep.local.dead.dispatcher.x", "lockstep.local.agent.18.connected",
				"$JS.API.STREAM.DELETE.DESIRED", "$JS.API.STREAM.PURGE.WORKSPACES", "$JS.API.STREAM.PURGE.OBSERVED",
				"$JS.API.STREAM.MSG.DELETE.DESIRED", "$JS.API.STREAM.RESTORE.DESIRED", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.AUTH",
			},
			subscribe: []string{">", "_INBOX.>", "_INBOX_operator.>", "lockstep.>", "$SYS.>", "$JS.ACK.>"},
		},
		natsauth.PrincipalDeploys: {
			publish: []string{
				"lockstep.local.observed.18.x", "lockstep.local.observed.18.workload.deployment.ns.name",
				"lockstep.other.observed.cluster.uid.released", "lockstep.local.desired.18.w",
				"lockstep.local.directory.agent.18", "lockstep.local.dead.state.x", "$JS.API.STREAM.PURGE.OBSERVED",
				"$JS.API.STREAM.CREATE.EVIL",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.>"},
		},
		natsauth.PrincipalRunners: {
			publish: []string{
				"lockstep.local.observed.18.x", "lockstep.local.deploy.c.n.k.w.started", "lockstep.local.desired.18.w",
				"lockstep.other.job.4.9001.pending", "lockstep.local.directory.key.x",
				"lockstep.local.admission.4.9001.decided", "lockstep.local.dead.admission.x", "lockstep.local.consumer.admission",
				"$JS.API.STREAM.PURGE.ADMISSION", "$JS.API.STREAM.PURGE.RUNNERS", "$JS.API.CONSUMER.CREATE.ADMISSION.evil",
				"$JS.API.CONSUMER.MSG.NEXT.JOBS.admission-jobs", "$KV.CELLS.cell.two", "$KV.CELLS.organization.7",
				"$KV.CELLS.legacy", "$KV.CELLS.moved.two.7", "$KV.CELLS.moved.local.7.x", "$KV.CELLS.moved.local",
				"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.moved.two.7",
				"$JS.API.STREAM.PURGE.JOBS", "$JS.API.STREAM.MSG.DELETE.JOBS", "$JS.API.STREAM.UPDATE.JOBS",
				"$JS.API.CONSUMER.CREATE.JOBS.evil", "$JS.API.DIRECT.GET.KV_CELLS",
				"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.cell.two", "$JS.API.STREAM.INFO.DEPLOYS",
			},
			subscribe: []string{
				">", "_INBOX_state.>", "lockstep.>", "lockstep.local.job.>", "lockstep.local.cells_live.>", "$KV.>",
			},
		},
		natsauth.PrincipalAdmission: {
			publish: []string{
				"lockstep.local.job.4.9001.pending", "lockstep.local.job.4.9001.admitted", "lockstep.local.runner.31",
				"lockstep.other.admission.4.9001.decided", "lockstep.local.directory.key.x", "lockstep.local.dead.runners.x",
				"lockstep.local.consumer.runners", "lockstep.local.desired.18.w", "$KV.CELLS.cell.local",
				"$JS.API.STREAM.PURGE.ADMISSION", "$JS.API.STREAM.MSG.DELETE.ADMISSION", "$JS.API.STREAM.UPDATE.ADMISSION",
				"$JS.API.STREAM.PURGE.JOBS", "$JS.API.CONSUMER.CREATE.JOBS.evil",
				"$JS.API.CONSUMER.MSG.NEXT.ADMISSION.runners-admission", "$JS.API.STREAM.INFO.DEPLOYS",
			},
			subscribe: []string{
				">", "_INBOX_runners.>", "lockstep.>", "lockstep.local.job.>", "lockstep.local.runner.>", "$KV.>",
			},
		},
		natsauth.PrincipalGateway: {
			publish: []string{
				"lockstep.local.access.workspace.w", "lockstep.local.access.ssh_key.f", "lockstep.local.access_live.w",
				"lockstep.local.directory.key.x", "lockstep.other.activity.w", "$JS.API.DIRECT.GET.ACTIVITY",
				"lockstep.local.directory.user.1", "lockstep.local.dead.gateway.x", "lockstep.local.dead.state.x",
				"lockstep.local.desired.18.w", "lockstep.local.consumer.gateway", "lockstep.local.secret.18.w",
				"$JS.API.STREAM.PURGE.ACCESS", "$JS.API.STREAM.MSG.DELETE.ACCESS", "$JS.API.STREAM.UPDATE.ACCESS",
				"$JS.API.CONSUMER.CREATE.ACCESS.evil", "$JS.API.STREAM.INFO.WORKSPACES", "$JS.API.DIRECT.GET.DESIRED",
				"$JS.API.STREAM.MSG.GET.AUDIT", "$KV.GATEWAY.other", "$KV.GATEWAY.other.x", "$KV.CELLS.cell.local",
				"$JS.API.STREAM.PURGE.KV_GATEWAY", "$JS.API.STREAM.MSG.DELETE.KV_GATEWAY", "$JS.API.STREAM.UPDATE.KV_GATEWAY",
				"$JS.API.CONSUMER.CREATE.KV_GATEWAY.evil", "lockstep.local.gateway_live.revoked.x",
			},
			subscribe: []string{
				">", "_INBOX_state.>", "_INBOX_relay.>", "lockstep.>", "lockstep.local.access.>", "lockstep.other.access_live.>",
				"$KV.GATEWAY.>",
				"lockstep.local.workspace.>", "$KV.>",
			},
		},
		natsauth.PrincipalRouter: {
			publish: []string{
				"lockstep.local.job.4.9001.pending", "lockstep.local.cells_live.cell.two", "lockstep.local.directory.key.x",
				"$KV.CELLS.cell.local", "$KV.CELLS.organization.7", "$KV.CELLS.legacy", "$JS.API.STREAM.PURGE.KV_CELLS",
				"$JS.API.STREAM.MSG.DELETE.KV_CELLS", "$JS.API.STREAM.UPDATE.KV_CELLS",
				"$JS.API.CONSUMER.CREATE.KV_CELLS.evil", "$JS.API.STREAM.INFO.JOBS", "$JS.API.DIRECT.GET.DIRECTORY",
				"$JS.API.STREAM.MSG.GET.JOBS",
			},
			subscribe: []string{
				">", "_INBOX_state.>", "_INBOX_runners.>", "lockstep.>", "lockstep.local.job.>",
				"lockstep.local.directory_live.>", "lockstep.other.cells_live.>", "$KV.>",
			},
		},
		natsauth.PrincipalRelay: {
			publish: []string{
				"lockstep.local.observed.18.x", "lockstep.local.desired.18.w", "lockstep.local.control.18.config",
				"lockstep.local.directory.agent.18", "lockstep.other.agent.18.connected",
				"lockstep.local.secret.18.w", "lockstep.local.dead.relay.x", "$KV.OTHERS.x", "$JS.API.STREAM.CREATE.EVIL",
				"$JS.API.STREAM.UPDATE.CONTROL",
				"$JS.API.STREAM.PURGE.KV_RELAYS",
				"$JS.API.STREAM.DELETE.KV_RELAYS", "$JS.API.STREAM.MSG.DELETE.KV_RELAYS", "$JS.API.STREAM.MSG.GET.DESIRED",
				"$JS.API.STREAM.INFO.AGENTS", "$JS.API.DIRECT.GET.OBSERVED",
				"$JS.API.CONSUMER.CREATE.DESIRED.evil", "$JS.API.CONSUMER.RESET.CONTROL.dispatcher-18",
				"$JS.API.CONSUMER.PAUSE.CONTROL.dispatcher-18", "$JS.ACK.CONTROL.dispatcher-18.1.1.1.1.1",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.>", "lockstep.local.control.>", "$KV.RELAYS.>"},
		},
		natsauth.PrincipalOperator: {
			publish: []string{
				"lockstep.local.observed.18.x", "lockstep.local.desired.18.w", "lockstep.local.directory.key.x",
				"lockstep.local.control.18.config", "lockstep.local.dead.state.x", "lockstep.local.secret.18.w",
				"lockstep.local.consumer.operator", "lockstep.local.audit.18.requests",
				"$JS.API.STREAM.CREATE.EVIL", "$JS.API.STREAM.UPDATE.DESIRED", "$JS.API.STREAM.DELETE.DESIRED",
				"$JS.API.STREAM.PURGE.DEAD", "$JS.API.STREAM.MSG.DELETE.DEAD", "$JS.API.STREAM.SNAPSHOT.DESIRED",
				"$JS.API.CONSUMER.CREATE.DESIRED", "$JS.API.CONSUMER.RESET.DESIRED.dispatcher-18",
				"$JS.API.CONSUMER.PAUSE.DESIRED.dispatcher-18", "$JS.API.CONSUMER.MSG.NEXT.DESIRED.dispatcher-18",
				"$JS.API.DIRECT.GET.DIRECTORY", "$JS.API.STREAM.MSG.GET.DIRECTORY", "$SYS.REQ.SERVER.PING.CONNZ",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.>", "lockstep.local.>", "lockstep.local.audit.>", "$JS.>"},
		},
		natsauth.PrincipalCells: {
			publish: []string{
				"$KV.CELLS.x", "$KV.CELLS.cell.two.x", "$KV.CELLS.moved.local.7", "$KV.CELLS.moved.two.7",
				"$KV.OTHERS.x", "lockstep.local.desired.18.w",
				"lockstep.local.cells_live.x", "$JS.API.STREAM.PURGE.KV_CELLS", "$JS.API.STREAM.MSG.DELETE.KV_CELLS",
				"$JS.API.STREAM.UPDATE.KV_CELLS", "$JS.API.DIRECT.GET.DIRECTORY", "$JS.API.CONSUMER.CREATE.KV_CELLS",
			},
			subscribe: []string{">", "_INBOX_state.>", "lockstep.>", "$KV.>", "_INBOX_cell-two.>"},
		},
		otherCell: {
			publish: []string{
				"$KV.CELLS.cell.local", "$KV.CELLS.cell.twoo", "$KV.CELLS.organization.7", "$KV.CELLS.legacy",
				"$KV.CELLS.moved.local.7", "$KV.CELLS.moved.twoo.7", "$KV.CELLS.moved.two",
				"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.moved.local.7",
				"$JS.API.DIRECT.GET.KV_CELLS", "$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.cell.local",
				"$JS.API.STREAM.INFO.KV_CELLS", "lockstep.local.desired.18.w",
			},
			subscribe: []string{">", "_INBOX_cells.>", "lockstep.>", "lockstep.local.cells_live.>", "$KV.>"},
		},
		natsauth.PrincipalCallout: {
			publish: []string{
				"$SYS.REQ.USER.AUTH", "lockstep.local.observed.18.x", "_INBOX.x", "$JS.API.INFO", "$SYS._INBOX.x",
			},
			subscribe: []string{">", "$SYS.REQ.USER.AUTH", "$SYS.>", "lockstep.>"},
		},
		natsauth.PrincipalSystem: {
			publish: []string{
				"$SYS.REQ.SERVER.x.RELOAD", "$SYS.REQ.SERVER.x.VARZ", "$SYS.REQ.CLAIMS.UPDATE",
				"$JS.API.ACCOUNT.PURGE.CONTROL", "lockstep.local.desired.18.w",
			},
			subscribe: []string{">", "$SYS.>", "$SYS.ACCOUNT.>"},
		},
	} {
		a := newClient()
		a.Conn = c.static(t, name,
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.recordError(err) }))

		for _, subject := range forbidden.publish {
			require.NoError(t, a.PublishRequest(subject, natsauth.InboxPrefix(name)+".x", nil))
			require.NoError(t, a.Flush())
			require.ErrorContains(t, receive(t, a.complaints), "Permissions Violation", name+" "+subject)
		}

		for _, subject := range forbidden.subscribe {
			require.NoError(t, a.trySubscribe(subject, ""))
			require.NoError(t, a.Flush())
			// An allowed wildcard with a denied part subscribes to the rest; only all of it denied
			// is an error.
			require.ErrorContains(t, receive(t, a.complaints), "Permissions Violation", name+" "+subject)
		}

		require.Equal(t, before, c.foreign(t))
	}
}

func TestRelayStoresInMemoryOnly(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	js, err := jetstream.New(c.static(t, natsauth.PrincipalRelay))
	require.NoError(t, err)

	config := jetstream.StreamConfig{Name: topology.StreamRelays, Subjects: []string{"$KV.RELAYS.>"}}
	_, err = js.CreateStream(testContext(t), config)
	require.ErrorContains(t, err, "insufficient storage")

	config.Storage, config.MaxBytes = jetstream.MemoryStorage, 1<<30
	_, err = js.CreateStream(testContext(t), config)
	require.ErrorContains(t, err, "insufficient memory")
}
