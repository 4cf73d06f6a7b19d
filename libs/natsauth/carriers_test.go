package natsauth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/natsauth"
)

// targetSubjects are subjects of every kind that belong to others: of all streams, of all requests of JetStream, of the
// server, and inboxes.
func targetSubjects() []string {
	subjects := slices.Concat(serverSubjects(), factSubjects("18"), apiSubjects("dispatcher-18"), []string{
		"lockstep.local.directory.key.forged", "lockstep.local.consumer.deploys",
		"lockstep.local.observed.cluster.uid.released",
		"lockstep.local.deploy.c1.shop.deployment.web.completed", "lockstep.local.job.4.9001.pending",
		"lockstep.local.admission.4.9001.decided", "lockstep.local.runner.31", "lockstep.local.consumer.runners",
		"lockstep.local.access.workspace.w", "lockstep.local.access.ssh_key.f", "lockstep.local.access_live.w",
		"lockstep.local.activity.w",
		"lockstep.local.agent.18.connected", "$KV.RELAYS.x",
	}, mapSubjects())
	slices.Sort(subjects)

	return slices.Compact(subjects)
}

// mapSubjects are entries of the cell map.
func mapSubjects() []string {
	return []string{
		"$KV.CELLS.cell.local", "$KV.CELLS.cell.two", "$KV.CELLS.cell.two.x", "$KV.CELLS.organization.7", "$KV.CELLS.legacy",
		"$KV.CELLS.x", "lockstep.local.cells_live.x",
	}
}

// carrierSubjects are all subjects that one of the principals might publish on.
func carrierSubjects() []string {
	subjects := targetSubjects()

	for _, owner := range []string{
		"17", "state", "deploys", "runners", "admission", "gateway", "router", "relay", "operator",
		"reader",
	} {
		subjects = append(subjects, factSubjects(owner)...)
	}

	for _, consumer := range []string{
		"dispatcher-17", "watcher-17", "subscriber-reader", "subscriber-shop", "sink-x", "deploys-workloads",
		"runners-admission", "admission-jobs", "x",
	} {
		subjects = append(subjects, apiSubjects(consumer)...)
	}

	for _, subject := range subjects {
		if request, ok := strings.CutPrefix(subject, jetstream.DefaultAPIPrefix); ok {
			subjects = append(subjects, natsauth.ControlAPIPrefix+"."+request)
		}
	}

	for _, subject := range mapSubjects() {
		subjects = append(subjects, "$JS.API.DIRECT.GET.KV_CELLS."+subject)
	}

	subjects = append(subjects,
		"$JS.API.DIRECT.GET.DIRECTORY.lockstep.local.directory.agent.7",
		"$JS.API.DIRECT.GET.DIRECTORY.lockstep.local.directory.user.1",
		"lockstep.local.consumer.relay", "lockstep.local.dead.deploys.x", "lockstep.local.dead.state.x",
	)
	slices.Sort(subjects)

	return slices.Compact(subjects)
}

// carriers are the subjects that the server lets the client publish on.
func (a *client) carriers(t *testing.T, name string, candidates []string) []string {
	t.Helper()

	refused := a.refused(t, candidates, func(subject string) error {
		return a.PublishRequest(subject, natsauth.InboxPrefix(name)+".probe", nil)
	})

	return slices.DeleteFunc(slices.Clone(candidates), func(subject string) bool {
		return refused[strings.ToLower(subject)]
	})
}

// bodies are the requests that make the server respond on the carrier. A new consumer delivers to the target.
func bodies(carrier, target string) []string {
	rest, creates := strings.CutPrefix(carrier, "$JS.API.CONSUMER.CREATE.")
	if !creates {
		rest, creates = strings.CutPrefix(carrier, "$JS.API.CONSUMER.DURABLE.CREATE.")
	}

	if creates {
		tokens := strings.SplitN(rest, ".", 3)
		config := fmt.Sprintf(`"deliver_subject":%q,"deliver_policy":"all","ack_policy":"none"`, target)

		if len(tokens) > 1 {
			config += fmt.Sprintf(`,"name":%q`, tokens[1])
		}

		if len(tokens) > 2 {
			config += fmt.Sprintf(`,"filter_subject":%q`, tokens[2])
		}

		return []string{fmt.Sprintf(`{"stream_name":%q,"config":{%s}}`, tokens[0], config)}
	}

	switch {
	case strings.HasSuffix(carrier, ".STREAM.CREATE.KV_RELAYS"), strings.HasSuffix(carrier, ".STREAM.UPDATE.KV_RELAYS"):
		return []string{fmt.Sprintf(
			`{"name":"KV_RELAYS","subjects":["$KV.RELAYS.>"],"storage":"memory","allow_direct":true,`+
				`"republish":{"src":"$KV.RELAYS.>","dest":%q}}`, target,
		)}
	case strings.Contains(carrier, ".MSG.GET."):
		return []string{"", `{"seq":1}`}
	case strings.Contains(carrier, ".DIRECT.GET."):
		return []string{"", `{"seq":1}`, `{"multi_last":["lockstep.>"],"batch":2}`}
	case strings.Contains(carrier, ".MSG.NEXT."):
		return []string{`{"batch":1,"no_wait":true}`, `{"batch":5,"expires":1000000}`}
	case strings.Contains(carrier, ".RESET."):
		return []string{"", `{"seq":1}`}
	default:
		return []string{"{}"}
	}
}
