package ingest_test

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// fakeAgent publishes events as the watcher and the dispatcher of an agent.
type fakeAgent struct {
	*fixture

	id      int64
	cluster string
	now     time.Time
	events  int
}

func (w *fixture) agent(id int64) *fakeAgent {
	return &fakeAgent{fixture: w, id: id, cluster: "cluster-1", now: start()}
}

func (a *fakeAgent) observe(subject, kind string, data any) {
	a.t.Helper()
	a.events++
	a.publish(subject, kind, event.AgentSource("local", a.id, "watcher"), strconv.Itoa(a.events), data)
}

// deploymentReport contains the test values of an ObservedDeployment event.
type deploymentReport struct {
	name      string
	version   int
	spec      int
	available int
	revision  string
	workspace uuid.UUID
	deleted   bool
	resync    string
	uid       string
	progress  string
	template  int
	// generation defaults to 1. label overrides the workspace label.
	generation int
	label      string
}

func (a *fakeAgent) meta(
	namespace, name string, version int, deleted bool, resync, workspace string,
) events.ObjectMeta {
	m := events.ObjectMeta{
		ClusterUID:      a.cluster,
		Namespace:       namespace,
		Name:            name,
		UID:             "uid-" + name,
		ResourceVersion: strconv.Itoa(version),
		Verb:            events.VerbUpserted,
		UpdateType:      events.UpdateTypePartial,
		ObservedAt:      a.now,
		ResyncID:        resync,
		WorkspaceID:     workspace,
	}
	if deleted {
		m.Verb = events.VerbDeleted
	}
	if resync != "" {
		m.UpdateType = events.UpdateTypeFull
	}
	return m
}

// reportsDeployment publishes a Deployment in the namespace ws-<agent>-<name>.
func (a *fakeAgent) reportsDeployment(s deploymentReport) {
	a.t.Helper()
	namespace := fmt.Sprintf("ws-%d-%s", a.id, s.name)
	label := ""
	if s.workspace != uuid.Nil {
		label = s.workspace.String()
	}
	if s.label != "" {
		label = s.label
	}
	generation := max(s.generation, 1)
	meta := a.meta(namespace, s.name, s.version, s.deleted, s.resync, label)
	meta.Annotations = map[string]string{workspace.AnnotationDesiredRevision: s.revision}
	if s.uid != "" {
		meta.UID = s.uid
	}
	progress := "NewReplicaSetAvailable"
	if s.progress != "" {
		progress = s.progress
	}
	a.observeDeployment(events.ObservedWorkload{
		Object:             meta,
		Kind:               events.WorkloadKindDeployment,
		SpecReplicas:       &s.spec,
		HasStatus:          true,
		AvailableReplicas:  s.available,
		Generation:         generation,
		ObservedGeneration: generation,
		Revision:           s.template,
		Conditions: []events.Condition{
			{Type: "Available", Status: "True", Reason: "MinimumReplicasAvailable"},
			{Type: "Progressing", Status: "True", Reason: progress},
		},
	})
}

// running returns the report of a running Deployment.
func running(w workspace.Workspace, version int) deploymentReport {
	return deploymentReport{name: w.Name, workspace: w.ID, version: version, spec: 1, available: 1, revision: "1"}
}

// deletedDeployment returns the report of a deleted Deployment.
func deletedDeployment(w workspace.Workspace, version int) deploymentReport {
	s := running(w, version)
	s.deleted = true
	return s
}

func member(s deploymentReport, resync string) deploymentReport {
	s.resync = resync
	return s
}

func (a *fakeAgent) pod(w workspace.Workspace, name string, version int, change func(p *events.ObservedPod)) {
	a.t.Helper()
	p := events.ObservedPod{
		Object:          a.meta(w.Namespace, name, version, false, "", w.ID.String()),
		Deployment:      w.Name,
		Phase:           "Pending",
		PodTemplateHash: "h",
	}
	change(&p)
	a.observe(cell.Observed(a.id, "deployment", w.Namespace, w.Name), "observed.pod.v1", p)
}

func (a *fakeAgent) replicaSet(w workspace.Workspace, version int) {
	a.t.Helper()
	meta := a.meta(w.Namespace, w.Name+"-h", version, false, "", w.ID.String())
	subject := cell.Observed(a.id, "deployment", w.Namespace, w.Name)
	if a.usesOldType() {
		a.observe(subject, "observed.replicaset.v1", events.ObservedReplicaSet{
			Object: meta, Deployment: w.Name, Revision: 1, PodTemplateHash: "h",
		})
		return
	}
	a.observe(subject, "observed.workload_revision.v1", events.ObservedWorkloadRevision{
		Object: meta, Kind: events.WorkloadRevisionKindReplicaset, Workload: w.Name, WorkloadUID: "uid-" + w.Name,
		Revision: 1, RevisionHistory: []int{1}, TemplateHash: "h",
	})
}

func (a *fakeAgent) begins(resync, nonce string, count, deployments int) {
	a.t.Helper()
	a.observe(cell.ObservedResync(a.id), "observed.resync_begun.v1", events.ObservedResyncBegun{
		ResyncID:   resync,
		ClusterUID: a.cluster,
		Cause:      events.ResyncCauseStart,
		Count:      count,
		Nonce:      nonce,
		ObservedAt: a.now,
		ListVersions: []events.ListVersion{
			{Kind: "deployment", ResourceVersion: strconv.Itoa(deployments)},
			{Kind: "pod", ResourceVersion: strconv.Itoa(deployments)},
		},
	})
}

// reportsPage publishes the members that report publishes in one message.
func (a *fakeAgent) reportsPage(resync string, report func(a *fakeAgent)) {
	a.t.Helper()
	page := events.ObservedMembers{ResyncID: resync, ClusterUID: a.cluster, ObservedAt: a.now}
	alone := *a
	alone.fixture = &fixture{t: a.t, send: func(m *natsgo.Msg) {
		page.Members = append(page.Members, events.ResyncMember{Type: m.Header.Get("ce-type"), Data: m.Data})
	}}
	report(&alone)
	a.observe(cell.ObservedMembers(a.id), "observed.members.v1", page)
}

func (a *fakeAgent) ends(resync string, count int) {
	a.t.Helper()
	ended := events.ObservedResyncEnded{ResyncID: resync, ClusterUID: a.cluster, Count: count, ObservedAt: a.now}
	a.observe(cell.ObservedResync(a.id), "observed.resync_ended.v1", ended)
}

func (a *fakeAgent) ticks() {
	a.t.Helper()
	a.observe(cell.ObservedTick(a.id), "observed.tick.v1", events.ObservedTick{ClusterUID: a.cluster, ObservedAt: a.now})
}

// publishApplied publishes an event of APPLIED for a workspace label, which can be any text.
func (a *fakeAgent) publishApplied(label, kind string, revision int) {
	a.t.Helper()
	a.events++
	source := event.AgentSource("local", a.id, "dispatcher")
	a.publish(cell.Applied(a.id, label), "applied."+kind+".v1", source, strconv.Itoa(a.events),
		map[string]any{"workspace_id": label, "desired_revision": revision, "observed_at": a.now})
}

func (a *fakeAgent) reports(kind string, id uuid.UUID, revision int, more map[string]any) {
	a.t.Helper()
	a.events++
	data := map[string]any{"workspace_id": id.String(), "desired_revision": revision, "observed_at": a.now}
	maps.Copy(data, more)
	source := event.AgentSource("local", a.id, "dispatcher")
	a.publish(cell.Applied(a.id, id.String()), "applied."+kind+".v1", source, strconv.Itoa(a.events), data)
}

func (a *fakeAgent) applies(id uuid.UUID, revision int) {
	a.t.Helper()
	a.reports("applied", id, revision, map[string]any{"objects": []any{}})
}

// appliesWithGeneration publishes an applied event with the generation of the Deployment.
func (a *fakeAgent) appliesWithGeneration(w workspace.Workspace, revision, generation int) {
	a.t.Helper()
	a.reports("applied", w.ID, revision, map[string]any{
		"objects": []any{}, "deployment_uid": "uid-" + w.Name, "deployment_generation": generation,
	})
}

func (a *fakeAgent) fails(id uuid.UUID, revision int) {
	a.t.Helper()
	a.reports("apply_failed", id, revision, map[string]any{
		"reason": "Forbidden", "message": "the cluster forbids it", "attempt": 1, "retry_after_ms": 1000,
	})
}
