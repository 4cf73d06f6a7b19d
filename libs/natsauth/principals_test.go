package natsauth_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
)

// principal is a client that tries to exceed its rights.
type principal struct {
	name    string
	connect func(t *testing.T, c *cell) *client
	// writes are filters of the subjects whose messages it may change.
	writes []string
	// consumers are the beginnings of those that it may move, as <stream>.<consumer>.
	consumers []string
	// requests are filters of the other subjects that it may publish on.
	requests []string
	// subscribes are filters of the subjects that it may subscribe to, beside its inbox.
	subscribes []string
}

func (p principal) moves(stream, consumer string) bool {
	return slices.ContainsFunc(p.consumers, func(begin string) bool {
		return strings.HasPrefix(stream+"."+consumer, begin)
	})
}

func staticPrincipal(name string) func(t *testing.T, c *cell) *client {
	return func(t *testing.T, c *cell) *client {
		t.Helper()

		a := newClient()
		a.Conn = c.static(t, name,
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.recordError(err) }))

		return a
	}
}

// confined are all principals that must not reach JetStream: all but the state service, which owns the streams.
func confined() []principal {
	return []principal{
		{
			name: natsauth.PrincipalDeploys, connect: staticPrincipal(natsauth.PrincipalDeploys),
			writes: []string{
				"lockstep.local.deploy.>", "lockstep.local.sink.>", "lockstep.local.observed.cluster.>",
				"lockstep.local.dead.deploys.>",
			},
			// It cannot guess the names of others on OBSERVED, and only it writes the other streams.
			consumers: []string{"OBSERVED.deploys-", "DEPLOYS.", "SINKS."},
			requests: []string{
				"lockstep.local.consumer.deploys",
				"$JS.API.STREAM.INFO.OBSERVED", "$JS.API.STREAM.MSG.GET.OBSERVED", "$JS.API.DIRECT.GET.OBSERVED",
				"$JS.API.DIRECT.GET.OBSERVED.>", "$JS.API.CONSUMER.INFO.OBSERVED.*", "$JS.API.CONSUMER.MSG.NEXT.OBSERVED.*",
				"$JS.API.STREAM.INFO.DEPLOYS", "$JS.API.STREAM.MSG.GET.DEPLOYS", "$JS.API.DIRECT.GET.DEPLOYS",
				"$JS.API.DIRECT.GET.DEPLOYS.>", "$JS.API.CONSUMER.INFO.DEPLOYS.*", "$JS.API.CONSUMER.MSG.NEXT.DEPLOYS.*",
				"$JS.API.CONSUMER.RESET.DEPLOYS.*", "$JS.ACK.DEPLOYS.*.>",
				"$JS.API.STREAM.INFO.SINKS", "$JS.API.STREAM.MSG.GET.SINKS", "$JS.API.DIRECT.GET.SINKS",
				"$JS.API.DIRECT.GET.SINKS.>", "$JS.API.CONSUMER.INFO.SINKS.*", "$JS.API.CONSUMER.MSG.NEXT.SINKS.*",
				"$JS.API.CONSUMER.RESET.SINKS.*", "$JS.ACK.SINKS.*.>",
				"$JS.API.STREAM.INFO.DIRECTORY", "$JS.API.STREAM.MSG.GET.DIRECTORY", "$JS.API.DIRECT.GET.DIRECTORY",
			},
			subscribes: []string{"lockstep.local.directory_live.>"},
		},
		{
			name: natsauth.PrincipalRunners, connect: staticPrincipal(natsauth.PrincipalRunners),
			writes: []string{
				"lockstep.local.job.>", "lockstep.local.runner.>", "lockstep.local.dead.runners.>", "$KV.CELLS.cell.local",
			},
			consumers: []string{"ADMISSION.runners-admission"},
			requests: []string{
				"lockstep.local.consumer.runners",
				"$JS.API.STREAM.INFO.JOBS", "$JS.API.STREAM.MSG.GET.JOBS", "$JS.API.DIRECT.GET.JOBS",
				"$JS.API.STREAM.INFO.RUNNERS", "$JS.API.STREAM.MSG.GET.RUNNERS", "$JS.API.DIRECT.GET.RUNNERS",
				"$JS.API.STREAM.INFO.ADMISSION", "$JS.API.STREAM.MSG.GET.ADMISSION", "$JS.API.DIRECT.GET.ADMISSION",
				"$JS.API.DIRECT.GET.ADMISSION.>", "$JS.API.CONSUMER.INFO.ADMISSION.runners-admission",
				"$JS.API.CONSUMER.MSG.NEXT.ADMISSION.runners-admission",
				"$JS.API.STREAM.INFO.DIRECTORY", "$JS.API.STREAM.MSG.GET.DIRECTORY", "$JS.API.DIRECT.GET.DIRECTORY",
				"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.cell.local",
			},
			subscribes: []string{"lockstep.local.directory_live.>"},
		},
		{
			name: natsauth.PrincipalAdmission, connect: staticPrincipal(natsauth.PrincipalAdmission),
			writes:    []string{"lockstep.local.admission.>", "lockstep.local.dead.admission.>"},
			consumers: []string{"JOBS.admission-jobs"},
			requests: []string{
				"lockstep.local.consumer.admission",
				"$JS.API.STREAM.INFO.ADMISSION", "$JS.API.STREAM.MSG.GET.ADMISSION", "$JS.API.DIRECT.GET.ADMISSION",
				"$JS.API.STREAM.INFO.RUNNERS", "$JS.API.STREAM.MSG.GET.RUNNERS", "$JS.API.DIRECT.GET.RUNNERS",
				"$JS.API.STREAM.INFO.JOBS", "$JS.API.STREAM.MSG.GET.JOBS", "$JS.API.DIRECT.GET.JOBS",
				"$JS.API.DIRECT.GET.JOBS.>", "$JS.API.CONSUMER.INFO.JOBS.admission-jobs",
				"$JS.API.CONSUMER.MSG.NEXT.JOBS.admission-jobs",
				"$JS.API.STREAM.INFO.DIRECTORY", "$JS.API.STREAM.MSG.GET.DIRECTORY", "$JS.API.DIRECT.GET.DIRECTORY",
			},
			subscribes: []string{"lockstep.local.directory_live.>", "lockstep.local.runner_live.>"},
		},
		{
			name: natsauth.PrincipalGateway, connect: staticPrincipal(natsauth.PrincipalGateway),
			writes: []string{
				"lockstep.local.activity.>", "$KV.GATEWAY.host_key.*", "$KV.GATEWAY.revoked.*", "$KV.GATEWAY.used.*",
			},
			requests: []string{
				"$JS.API.STREAM.INFO.KV_GATEWAY", "$JS.API.STREAM.MSG.GET.KV_GATEWAY", "$JS.API.DIRECT.GET.KV_GATEWAY",
				"$JS.API.DIRECT.GET.KV_GATEWAY.$KV.GATEWAY.host_key.*",
				"$JS.API.STREAM.INFO.ACCESS", "$JS.API.STREAM.MSG.GET.ACCESS", "$JS.API.DIRECT.GET.ACCESS",
				"$JS.API.STREAM.INFO.DIRECTORY", "$JS.API.STREAM.MSG.GET.DIRECTORY", "$JS.API.DIRECT.GET.DIRECTORY",
			},
			subscribes: []string{
				"lockstep.local.directory_live.>", "lockstep.local.access_live.>", "lockstep.local.gateway_live.>",
			},
		},
		{
			name: natsauth.PrincipalRouter, connect: staticPrincipal(natsauth.PrincipalRouter),
			requests: []string{
				"$JS.API.STREAM.INFO.KV_CELLS", "$JS.API.STREAM.MSG.GET.KV_CELLS", "$JS.API.DIRECT.GET.KV_CELLS",
			},
			subscribes: []string{"lockstep.local.cells_live.>"},
		},
		{
			name: natsauth.PrincipalRelay, connect: staticPrincipal(natsauth.PrincipalRelay),
			writes: []string{"lockstep.local.agent.>", "lockstep.local.audit.>"},
			requests: []string{
				"$JS.CONTROL.API.STREAM.INFO.DIRECTORY", "$JS.CONTROL.API.STREAM.MSG.GET.DIRECTORY",
				"$JS.CONTROL.API.DIRECT.GET.DIRECTORY",
				"$JS.CONTROL.API.STREAM.INFO.CONTROL", "$JS.CONTROL.API.STREAM.MSG.GET.CONTROL",
				"$JS.CONTROL.API.DIRECT.GET.CONTROL",
				// Its bucket, in its own account.
				"$KV.RELAYS.>", "$JS.FC.KV_RELAYS.>", "$JS.API.STREAM.CREATE.KV_RELAYS", "$JS.API.STREAM.UPDATE.KV_RELAYS",
				"$JS.API.STREAM.INFO.KV_RELAYS", "$JS.API.STREAM.MSG.GET.KV_RELAYS", "$JS.API.DIRECT.GET.KV_RELAYS",
				"$JS.API.DIRECT.GET.KV_RELAYS.>", "$JS.API.CONSUMER.CREATE.KV_RELAYS.>", "$JS.API.CONSUMER.INFO.KV_RELAYS.*",
				"$JS.API.CONSUMER.DELETE.KV_RELAYS.*", "$JS.API.CONSUMER.MSG.NEXT.KV_RELAYS.*",
			},
			subscribes: []string{"lockstep.local.directory_live.>", "lockstep.local.control_live.*.config"},
		},
		{
			name: natsauth.PrincipalOperator, connect: staticPrincipal(natsauth.PrincipalOperator),
			requests: append(operatorRequests(), "$JS.API.DIRECT.GET.DIRECTORY.lockstep.local.directory.agent.*"),
		},
		{
			name: natsauth.PrincipalCells, connect: staticPrincipal(natsauth.PrincipalCells),
			writes: []string{"$KV.CELLS.cell.*", "$KV.CELLS.organization.*", "$KV.CELLS.legacy"},
			requests: []string{
				"$JS.API.STREAM.INFO.KV_CELLS", "$JS.API.STREAM.MSG.GET.KV_CELLS", "$JS.API.DIRECT.GET.KV_CELLS",
				"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.cell.*", "$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.organization.*",
				"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.legacy",
			},
		},
		{
			name: otherCell, connect: staticPrincipal(otherCell), writes: []string{"$KV.CELLS.cell.two"},
			requests: []string{"$JS.API.DIRECT.GET.KV_CELLS.$KV.CELLS.cell.two"},
		},
		{name: natsauth.PrincipalCallout, connect: staticPrincipal(natsauth.PrincipalCallout)},
		{
			name: natsauth.PrincipalSystem, connect: staticPrincipal(natsauth.PrincipalSystem),
			requests: []string{"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.*.KICK"},
		},
		{
			name: "17",
			connect: func(t *testing.T, c *cell) *client {
				t.Helper()

				return c.agent(t, agentOne)
			},
			writes:    []string{"lockstep.local.observed.17.>", "lockstep.local.applied.17.*"},
			consumers: []string{"DESIRED.dispatcher-17", "CONTROL.dispatcher-17", "CONTROL.watcher-17"},
			requests: []string{
				"lockstep.local.secret.17.*", "$JS.ACK.DESIRED.dispatcher-17.>", "$JS.ACK.CONTROL.dispatcher-17.>",
				"$JS.ACK.CONTROL.watcher-17.>",
				"$JS.API.CONSUMER.INFO.DESIRED.dispatcher-17", "$JS.API.CONSUMER.RESET.DESIRED.dispatcher-17",
				"$JS.API.CONSUMER.INFO.CONTROL.dispatcher-17", "$JS.API.CONSUMER.RESET.CONTROL.dispatcher-17",
				"$JS.API.CONSUMER.INFO.CONTROL.watcher-17", "$JS.API.CONSUMER.RESET.CONTROL.watcher-17",
				"$JS.API.CONSUMER.MSG.NEXT.DESIRED.dispatcher-17", "$JS.API.CONSUMER.MSG.NEXT.CONTROL.dispatcher-17",
				"$JS.API.CONSUMER.MSG.NEXT.CONTROL.watcher-17",
			},
		},
		{
			name: "reader",
			connect: func(t *testing.T, c *cell) *client {
				t.Helper()

				return c.reader(t, "reader")
			},
			consumers: []string{"DEPLOYS.subscriber-reader"},
			requests: []string{
				"$JS.API.CONSUMER.INFO.DEPLOYS.subscriber-reader", "$JS.API.CONSUMER.MSG.NEXT.DEPLOYS.subscriber-reader",
				"$JS.ACK.DEPLOYS.subscriber-reader.>",
			},
		},
		{
			name: "reader.live",
			connect: func(t *testing.T, c *cell) *client {
				t.Helper()

				return c.reader(t, "reader.live")
			},
			subscribes: []string{"lockstep.local.deploy.>"},
		},
	}
}

// otherCell is the principal of the runners of the cell two.
const otherCell = "cell-two"

// operatorRequests are those for the messages of every stream but DIRECTORY.
func operatorRequests() []string {
	var requests []string

	for _, stream := range []string{
		"OBSERVED", "DESIRED", "DESIRED_LOG", "APPLIED", "CONTROL", "WORKSPACES", "DEPLOYS", "SINKS", "JOBS", "ADMISSION",
		"RUNNERS", "ACCESS", "ACTIVITY", "AGENTS", "AUDIT", "DEAD", "KV_CELLS",
	} {
		requests = append(requests,
			"$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.DIRECT.GET."+stream)
	}

	return requests
}

// withJetStream is the state service. The server writes anything for it.
func withJetStream() []principal {
	return []principal{
		{
			name: natsauth.PrincipalState, connect: staticPrincipal(natsauth.PrincipalState),
			writes: []string{
				"lockstep.local.desired.>", "lockstep.local.desired_log.>", "lockstep.local.control.>",
				"lockstep.local.workspace.>", "lockstep.local.directory.>", "lockstep.local.access.>",
				"lockstep.local.dead.state.>",
				"lockstep.local.agent.*.blocked", "lockstep.local.agent.*.silent", "lockstep.local.agent.*.returned",
				// Dead letters that it retries.
				"lockstep.local.observed.>", "lockstep.local.applied.>", "lockstep.local.sink.>", "lockstep.local.job.>",
				"lockstep.local.admission.>",
			},
			requests: []string{
				"$JS.API.INFO", "$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "$JS.API.STREAM.INFO.*",
				"$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.>",
				"$JS.API.CONSUMER.>", "$JS.API.STREAM.PURGE.DESIRED", "$JS.API.STREAM.PURGE.CONTROL",
				"$JS.API.STREAM.PURGE.DIRECTORY", "$JS.API.STREAM.MSG.DELETE.DEAD", "$JS.ACK.>",
			},
			subscribes: []string{"lockstep.local.secret.*.*", "lockstep.local.consumer.*"},
		},
	}
}

func matches(filters []string, subject string) bool {
	return slices.ContainsFunc(filters, func(filter string) bool {
		return server.SubjectMatchesFilter(subject, filter)
	})
}

// refused returns the subjects, in lower case, for which the server refuses what the client tries.
func (a *client) refused(t *testing.T, subjects []string, try func(subject string) error) map[string]bool {
	t.Helper()

	const last = "refused.to.all"

	drain(a.complaints)

	for _, subject := range subjects {
		require.NoError(t, try(subject))
	}

	require.NoError(t, a.Publish(last, nil))

	refused := make(map[string]bool)

	for !refused[last] {
		complaint := receive(t, a.complaints).Error()
		_, quoted, found := strings.Cut(complaint, ` to "`)
		require.True(t, found, complaint)
		quoted, err := strconv.QuotedPrefix(`"` + quoted)
		require.NoError(t, err)
		subject, err := strconv.Unquote(quoted)
		require.NoError(t, err)

		refused[strings.ToLower(subject)] = true
	}

	return refused
}

// representatives returns some carriers of each filter of the principal: the server handles those of one filter alike.
// The consumers of deploys do not exist in the cell, as "x" does not.
func (p principal) representatives(most int, carriers []string) []string {
	filters, count := slices.Concat(p.writes, p.requests), make(map[int]int)

	return slices.DeleteFunc(slices.Clone(carriers), func(carrier string) bool {
		filter := slices.IndexFunc(filters, func(filter string) bool { return matches([]string{filter}, carrier) })
		if filter < 0 {
			return false
		}

		if strings.Contains(carrier, ".deploys-workloads") || strings.Contains(carrier, ".sink-x") {
			return true
		}

		count[filter]++

		return count[filter] > most
	})
}

// trySubscribe subscribes and unsubscribes, because accounts limit the subscriptions. It makes no channel of its own:
// that of a synchronous subscription has 4 MB.
func (a *client) trySubscribe(subject, queue string) error {
	subscription, err := a.ChanQueueSubscribe(subject, queue, a.ignored)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}

	return subscription.Unsubscribe()
}

// TestNoPrincipalWritesThroughTheServer tries to make the server write for each principal what the principal may not
// write itself: it sends every request that it may send, with every subject as the one for the response and for the
// messages of a new consumer. An acknowledgement that is stored as desired state would also erase it.
func TestNoPrincipalWritesThroughTheServer(t *testing.T) {
	t.Parallel()

	for _, p := range confined() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()

			c := startCell(t)
			c.fillStreams(t)
			c.settle(t) // a message in every stream

			stolen, err := c.state.SubscribeSync(natsauth.InboxPrefix(natsauth.PrincipalState) + ".x")
			require.NoError(t, err)

			a := p.connect(t, c)
			targets := slices.DeleteFunc(targetSubjects(), func(subject string) bool { return matches(p.writes, subject) })
			carriers := p.representatives(5, a.carriers(t, p.name, carrierSubjects()))
			evidence := func() map[string]any {
				return c.stored(t, func(subject string) bool { return matches(p.writes, subject) },
					p.moves)
			}
			before := evidence()

			for _, carrier := range carriers {
				for _, target := range targets {
					for _, body := range bodies(carrier, target) {
						require.NoError(t, a.PublishRequest(carrier, target, []byte(body)))
					}
				}

				require.NoError(t, a.FlushWithContext(testContext(t)))
			}

			c.settle(t)
			require.Equal(t, before, evidence())

			received, _, err := stolen.Pending()
			require.NoError(t, err)
			require.Zero(t, received, "messages in the inbox of the state service")
			require.True(t, a.IsConnected())
		})
	}
}

// TestPrincipalsReachNothingElse publishes on every subject and subscribes to every subject.
func TestPrincipalsReachNothingElse(t *testing.T) {
	t.Parallel()

	for _, p := range append(confined(), withJetStream()...) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()

			c := startCell(t)
			a := p.connect(t, c)
			own := natsauth.InboxPrefix(p.name) + "."

			for _, subject := range a.carriers(t, p.name, append(carrierSubjects(), wildcardSubjects()...)) {
				require.True(t, matches(p.writes, subject) || matches(p.requests, subject), "publish on %s", subject)
			}

			all := append(carrierSubjects(), wildcardSubjects()...)

			for _, queue := range []string{"", "q"} {
				refused := a.refused(t, all, func(subject string) error { return a.trySubscribe(subject, queue) })

				for _, subject := range all {
					require.True(t, refused[strings.ToLower(subject)] || strings.HasPrefix(subject, own) ||
						matches(p.subscribes, subject), "subscribe to %s", subject)
				}
			}
		})
	}
}

// settle returns when the streams have stored what was published before.
func (c *cell) settle(t *testing.T) {
	t.Helper()

	conn := c.static(t, natsadmin.Name)
	js, err := jetstream.New(conn)
	require.NoError(t, err)

	for _, stream := range topology.Streams() {
		_, err := js.Publish(testContext(t), cellName.Prefix(stream.Family)+".settled", nil)
		require.NoError(t, err, stream.Name)
	}

	conn.Close()
}
