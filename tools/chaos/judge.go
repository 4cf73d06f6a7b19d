package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

const (
	// leaseDeadline is how long the watcher's leader tries to renew its Lease.
	leaseDeadline = 6 * time.Second
	// outageMargin extends an outage: observations right before it may be unsent, and the first list after it takes a
	// moment.
	outageMargin = 10 * time.Second

	labelWorkspace = "lockstep.dev/workspace"
)

// watcherNATS is the name of the links between watchers and NATS.
var watcherNATS = stack.WatcherOf(firstAgent) + "-" + nats

// Judge returns a sentence for each fault of the system that the recording shows: a request that was answered and is
// lost, an event twice, missing, invented or out of order, a rollout without its start or end, a change in the cluster
// that nobody requested, a secret in an event, a quota that was exceeded, an answer of the wrong agent.
func Judge(r Recording) history.Findings {
	streams := map[string][]history.Record{}
	for _, m := range r.Messages {
		streams[m.Family] = append(streams[m.Family], m.Record)
	}
	var f history.Findings
	for _, stream := range topology.Streams() {
		f = append(f, judgeStream(stream, streams[stream.Family])...)
	}
	published, sent := streams[topology.FamilyWorkspace], streams[topology.FamilyDesiredLog]
	f = append(f, history.Workspaces(published)...)
	f = append(f, history.Desired(published, sent)...)
	f = append(f, history.Applied(sent, streams[topology.FamilyApplied])...)
	f = append(f, history.Effects(sent, streams[topology.FamilyObserved])...)
	calls := make([]history.Call, len(r.Calls))
	for i, c := range r.Calls {
		calls[i] = c.Call
	}
	f = append(f, history.Calls(calls, published)...)
	f = append(f, history.Kept(volumes(r.Versions))...)
	f = append(f, judgeRollouts(r, streams[topology.FamilyDeploy], streams[topology.FamilyObserved])...)
	f = append(f, judgeRemovals(r, streams[topology.FamilyDeploy])...)
	f = append(f, judgeCluster(r)...)
	f = append(f, judgeStates(r, streams)...)
	f = append(f, judgeQuotas(r)...)
	f = append(f, judgeRelayed(r.Relayed)...)
	return append(f, judgeSecrets(r)...)
}

// judgeStream checks each message of a stream.
func judgeStream(stream topology.Stream, records []history.Record) history.Findings {
	switch stream.Name {
	case topology.StreamDead, topology.StreamSinks:
		var f history.Findings
		for _, r := range records {
			f = append(f, fmt.Sprintf("stream %s has a message on %s: %v", stream.Name, r.Subject, r.Header))
		}
		return f
	case topology.StreamDeploys:
		return history.Facts(stack.Cell, records)
	default:
		return history.Events(stack.Cell, stream, records)
	}
}

// judgeRollouts compares the facts about the workloads with the versions that the API server reported, and with the
// traces in observations.
func judgeRollouts(r Recording, facts, observed []history.Record) history.Findings {
	versions := slices.DeleteFunc(slices.Clone(r.Versions), func(v history.ObjectVersion) bool {
		return v.Object.GetNamespace() != workloadsNamespace
	})
	ours := "." + topology.Escape(workloadsNamespace) + "."
	facts = slices.DeleteFunc(slices.Clone(facts), func(fact history.Record) bool {
		return !strings.Contains(fact.Subject, ours)
	})
	expected := history.ExpectedRollouts(r.Run.Cluster, versions)
	f := history.Trace(expected, observed)
	return append(f, history.Rollouts(facts, expected, outages(r))...)
}

// outages returns the periods in which no watcher held the Lease of the agent with the load, with their margins. What
// the watcher could not send before is lost with its leader, so that an outage begins with a fault of NATS that
// reaches into it.
func outages(r Recording) []history.Outage {
	leases := slices.DeleteFunc(slices.Clone(r.Versions), func(v history.ObjectVersion) bool {
		_, is := v.Object.(*coordinationv1.Lease)
		return !is
	})
	found := history.Outages(leases, leaseDeadline)
	for i := range found {
		found[i].From, found[i].Until = found[i].From.Add(-outageMargin), found[i].Until.Add(outageMargin)
		for _, f := range slices.Backward(r.Faults) {
			unsent := f.Target == nats || replicaNumber.ReplaceAllString(f.Target, "") == watcherNATS
			if unsent && f.From.Before(found[i].From) && f.Until.After(found[i].From) {
				found[i].From = f.From
			}
		}
	}
	return found
}

// judgeRemovals checks that each workload whose facts are published is reported as deleted if it was, once, and no
// other: as removed, or as the end of its rollout.
func judgeRemovals(r Recording, facts []history.Record) history.Findings {
	var f history.Findings
	known, deleted := map[string]bool{}, map[string]int{}
	for _, record := range facts {
		fact, err := factOf(record)
		if err != nil {
			continue // history.Facts reports it
		}
		known[fact.Workload.UID] = true
		if fact.Fact == events.FactRemoved || fact.Fact == events.FactCancelled && fact.Reason == "Deleted" {
			deleted[fact.Workload.UID]++
		}
	}
	for _, w := range history.ExpectedRollouts(r.Run.Cluster, r.Versions) {
		want := 0
		if known[w.UID] && !w.Deleted.IsZero() {
			want = 1
		}
		if deleted[w.UID] != want {
			f = append(f, fmt.Sprintf("%s: workload %s is reported as deleted %d times, want %d",
				w.Name, w.UID, deleted[w.UID], want))
		}
	}
	return f
}

func factOf(record history.Record) (events.DeployFact, error) {
	e, err := event.Decode(record.Header, record.Data)
	if err != nil {
		return events.DeployFact{}, fmt.Errorf("decode a fact: %w", err)
	}
	return cdevent.Read(e)
}

// judgeStates compares the last actual state that is published of each workspace with the last that its user was
// answered, and the last desired state with its history.
func judgeStates(r Recording, streams map[string][]history.Record) history.Findings {
	var f history.Findings
	states, newest := map[string]events.ActualState{}, map[string]int{}
	read := func(record history.Record, data any) {
		if err := json.Unmarshal(record.Data, data); err != nil {
			f = append(f, fmt.Sprintf("sequence %d, %s: %v", record.Sequence, record.Subject, err))
		}
	}
	for _, record := range streams[topology.FamilyWorkspace] {
		if strings.HasSuffix(record.Subject, ".state_changed") {
			var e events.WorkspaceStateChanged
			read(record, &e)
			states[e.WorkspaceID] = e.To
		}
	}
	for _, record := range streams[topology.FamilyDesiredLog] {
		var e events.DesiredWorkspace
		read(record, &e)
		newest[e.WorkspaceID] = e.DesiredRevision
	}
	for _, record := range streams[topology.FamilyDesired] {
		var e events.DesiredWorkspace
		if read(record, &e); e.DesiredRevision != newest[e.WorkspaceID] {
			f = append(f, fmt.Sprintf("workspace %s: DESIRED has revision %d, its history ends with %d",
				e.WorkspaceID, e.DesiredRevision, newest[e.WorkspaceID]))
		}
	}
	for _, want := range r.Desired {
		if states[want.Workspace] != want.State {
			f = append(f, fmt.Sprintf("workspace %s: the last event has the state %s, its user was answered %s",
				want.Name, states[want.Workspace], want.State))
		}
	}
	return f
}

// volumes returns the claims of workspaces that the cluster had.
func volumes(versions []history.ObjectVersion) []history.Volume {
	var all []history.Volume
	for _, v := range versions {
		if claim, is := v.Object.(*corev1.PersistentVolumeClaim); is && claim.Labels[labelWorkspace] != "" {
			all = append(all, history.Volume{
				Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID), Workspace: claim.Labels[labelWorkspace],
			})
		}
	}
	return all
}

// judgeCluster compares the last version of each workspace's Deployment with what its user has last requested.
func judgeCluster(r Recording) history.Findings {
	last := map[string]*appsv1.Deployment{}
	for _, v := range r.Versions {
		if d, is := v.Object.(*appsv1.Deployment); is && d.Labels[labelWorkspace] != "" {
			id := d.Labels[labelWorkspace]
			if last[id] = d; v.Deleted {
				delete(last, id)
			}
		}
	}
	var f history.Findings
	for _, want := range r.Desired {
		d := last[want.Workspace]
		delete(last, want.Workspace)
		if want.Terminated != (d == nil) {
			f = append(f, fmt.Sprintf("workspace %s: terminated is %t, and the cluster has its Deployment: %t",
				want.Name, want.Terminated, d != nil))
			continue
		}
		if d == nil {
			continue
		}
		if got := deployed(want, d); got != want {
			f = append(f, fmt.Sprintf("workspace %s: the cluster has %+v, want %+v", want.Name, got, want))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(last)) {
		f = append(f, fmt.Sprintf("Deployment %s/%s belongs to workspace %s, which nobody created",
			last[id].Namespace, last[id].Name, id))
	}
	return f
}

// deployed returns what a Deployment makes of a workspace.
func deployed(of Desired, d *appsv1.Deployment) Desired {
	got := Desired{Workspace: of.Workspace, Namespace: d.Namespace, Name: d.Name, State: of.State}
	if d.Spec.Replicas != nil {
		got.Replicas = *d.Spec.Replicas
	}
	for _, c := range d.Spec.Template.Spec.Containers {
		got.Image = c.Image
		for _, variable := range c.Env {
			if variable.Name == numberVariable {
				got.Number = variable.Value
			}
		}
		for _, port := range c.Ports {
			got.Port = port.ContainerPort
		}
	}
	return got
}

// judgeQuotas counts the workspaces of each user by the answers. A user makes one call after another.
func judgeQuotas(r Recording) history.Findings {
	var f history.Findings
	counts := map[string]int{}
	for _, c := range r.Calls {
		switch {
		case c.Created:
			if counts[c.User]++; counts[c.User] > r.Run.MaxWorkspaces {
				f = append(f, fmt.Sprintf("%s has %d workspaces, the quota is %d", c.User, counts[c.User], r.Run.MaxWorkspaces))
			}
		case c.Terminated:
			counts[c.User]--
		case c.OverQuota && counts[c.User] < r.Run.MaxWorkspaces:
			f = append(f, fmt.Sprintf("%s is refused a workspace by the quota of %d with %d workspaces",
				c.User, r.Run.MaxWorkspaces, counts[c.User]))
		}
	}
	return f
}

// judgeRelayed checks that each request was answered by its agent's target, with its own answer.
func judgeRelayed(relayed []Relayed) history.Findings {
	var f history.Findings
	for _, r := range relayed {
		if want := answerOf(r.Agent, r.Question); r.Answer != want {
			f = append(f, fmt.Sprintf("request %q to agent %s is answered with %q, want %q",
				r.Question, r.Agent, r.Answer, want))
		}
	}
	return f
}

// judgeSecrets looks for the values of secrets in all messages.
func judgeSecrets(r Recording) history.Findings {
	var f history.Findings
	for _, secret := range r.Secrets {
		encoded := []byte(base64.StdEncoding.EncodeToString([]byte(secret)))
		for _, m := range r.Messages {
			if bytes.Contains(m.Data, []byte(secret)) || bytes.Contains(m.Data, encoded) {
				f = append(f, fmt.Sprintf("a message on %s contains the secret %s", m.Subject, secret))
			}
		}
	}
	return f
}

// Summary counts what was judged, for people.
func Summary(r Recording) string {
	families := map[string]int{}
	for _, m := range r.Messages {
		families[m.Family]++
	}
	lost := 0
	for _, c := range r.Calls {
		lost += c.Lost
	}
	rollouts := 0
	for _, w := range history.ExpectedRollouts(r.Run.Cluster, r.Versions) {
		if strings.HasPrefix(w.Name, workloadsNamespace+"/") {
			rollouts += len(w.Rollouts)
		}
	}
	names := slices.SortedFunc(maps.Keys(families), func(a, b string) int { return cmp.Compare(families[b], families[a]) })
	messages := make([]string, len(names))
	for i, name := range names {
		messages[i] = fmt.Sprintf("%d %s", families[name], name)
	}
	return fmt.Sprintf("seed %d: %d faults, %d calls (%d attempts without an answer), %d relayed requests, "+
		"%d versions of objects with %d rollouts, %d leaderless periods; messages: %s",
		r.Run.Seed, len(r.Faults), len(r.Calls), lost, len(r.Relayed), len(r.Versions), rollouts,
		len(outages(r)), strings.Join(messages, ", "))
}
