package nats_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
)

// agent publishes observations like a watcher.
type agent struct {
	w       *fixture
	id      int64
	cluster string
	now     time.Time
	rv      *int
	events  int
	resync  string
}

func (w *fixture) agent(id int64) *agent {
	return &agent{w: w, id: id, cluster: "cluster-" + strconv.FormatInt(id, 10), now: start(), rv: new(100)}
}

func (a *agent) publish(subject, kind string, data any) {
	a.w.t.Helper()
	a.events++
	e, err := event.New(event.Attributes{
		Type: kind, Source: event.AgentSource(string(cell), a.id, "watcher"), Subject: "s",
		ID: fmt.Sprintf("%d/%d", a.id, a.events), Time: a.now,
	}, data)
	require.NoError(a.w.t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(a.w.t, err)
	// Other writers do not escape HTML characters in JSON.
	var raw bytes.Buffer
	plain := json.NewEncoder(&raw)
	plain.SetEscapeHTML(false)
	require.NoError(a.w.t, plain.Encode(data))
	msg.Data = raw.Bytes()
	_, err = a.w.js.PublishMsg(a.w.t.Context(), msg)
	require.NoError(a.w.t, err)
}

func (a *agent) advance(d time.Duration) { a.now = a.now.Add(d) }

func (a *agent) tick() {
	a.w.t.Helper()
	a.advance(15 * time.Second)
	a.publish(cell.ObservedTick(a.id), events.TypeObservedTick, events.ObservedTick{
		ClusterUID: a.cluster, ObservedAt: a.now,
	})
}

func (a *agent) version() string { return strconv.Itoa(*a.rv) }

func (a *agent) next() string {
	*a.rv++
	return a.version()
}

// begin begins a full resync.
func (a *agent) begin(count int, selection string) {
	a.w.t.Helper()
	a.advance(time.Second)
	a.resync = uuid.Must(uuid.NewV7()).String()
	a.publishBegin(count, selection)
}

// publishBegin publishes the begin of the current full resync.
func (a *agent) publishBegin(count int, selection string) {
	a.w.t.Helper()
	a.publish(cell.ObservedResync(a.id), events.TypeObservedResyncBegun, map[string]any{
		"resync_id": a.resync, "cluster_uid": a.cluster, "cause": "start", "count": count, "observed_at": a.now,
		"scope": "workloads", "selection": selection,
		"list_versions": []map[string]string{
			{"kind": "deployment", "resource_version": a.version()},
			{"kind": "statefulset", "resource_version": a.version()},
			{"kind": "daemonset", "resource_version": a.version()},
			{"kind": "replicaset", "resource_version": a.version()},
		},
	})
}

func (a *agent) end(count int) {
	a.w.t.Helper()
	a.advance(time.Second)
	a.publish(cell.ObservedResync(a.id), events.TypeObservedResyncEnded, map[string]any{
		"resync_id": a.resync, "cluster_uid": a.cluster, "count": count, "observed_at": a.now, "scope": "workloads",
	})
	a.resync = ""
}

// list publishes a full resync with these Deployments and their ReplicaSets.
func (a *agent) list(selection string, apps ...*app) {
	a.w.t.Helper()
	count := 0
	for _, p := range apps {
		count += 1 + len(p.sets)
	}
	a.begin(count, selection)
	for _, p := range apps {
		p.send()
		for _, s := range p.sets {
			p.sendSet(s)
		}
	}
	a.end(count)
}

// app is a Deployment with its ReplicaSets.
type app struct {
	a                          *agent
	name, uid, image           string
	rv                         string
	generation, revision       int
	replicas, updated, current int // desired, updated, available
	labels, annotations        map[string]string
	sets                       []*set
	started, created           time.Time
	first                      bool // the watcher observes it for the first time
	deadline                   *int
}

// set is a ReplicaSet.
type set struct {
	uid, rv, hash string
	revision      int
	created       time.Time
}

// app returns a Deployment with a completed first rollout. It publishes nothing.
func (a *agent) app(name string) *app {
	p := &app{
		a: a, name: name, uid: "uid-" + name, image: "i:1", replicas: 3, updated: 3, current: 3, generation: 1,
		revision: 1, labels: map[string]string{"app": name}, deadline: new(600),
	}
	p.started, p.created = a.now.Truncate(time.Second), start().Add(-time.Hour)
	p.sets = append(p.sets, &set{uid: "rs-" + name + "-1", hash: "h1", revision: 1, rv: a.next(), created: p.started})
	p.rv = a.next()
	return p
}

func (p *app) meta(name, uid, rv string, created time.Time) events.ObjectMeta {
	m := events.ObjectMeta{
		ClusterUID: p.a.cluster, Namespace: "shop", Name: name, UID: uid, ResourceVersion: rv, Verb: events.VerbUpserted,
		UpdateType: events.UpdateTypePartial,
		ObservedAt: p.a.now, CreatedAt: &created,
	}
	if p.a.resync != "" {
		m.UpdateType, m.ResyncID = events.UpdateTypeFull, p.a.resync
	}
	return m
}

func (p *app) observation() events.ObservedWorkload {
	m := p.meta(p.name, p.uid, p.rv, p.created)
	m.FirstSeen = p.first
	m.Labels, m.Annotations = p.labels, p.annotations
	message := fmt.Sprintf("ReplicaSet %q is progressing.", p.name+"-"+p.sets[len(p.sets)-1].hash)
	reason := "ReplicaSetUpdated"
	if p.updated == p.replicas && p.current == p.replicas {
		reason, message = "NewReplicaSetAvailable",
			fmt.Sprintf("ReplicaSet %q has successfully progressed.", p.name+"-"+p.sets[len(p.sets)-1].hash)
	}
	at := p.a.now.Truncate(time.Second)
	return events.ObservedWorkload{
		Object: m, Kind: events.WorkloadKindDeployment, Generation: p.generation, ObservedGeneration: p.generation,
		SpecReplicas: new(p.replicas), HasStatus: true,
		Strategy: "RollingUpdate", ProgressDeadlineSeconds: p.deadline, Revision: p.revision, Replicas: p.replicas,
		UpdatedReplicas: p.updated, ReadyReplicas: p.current,
		AvailableReplicas: p.current, UnavailableReplicas: p.replicas - p.current, TerminatingReplicas: new(0),
		Template: &events.PodTemplate{
			Digest: "d-" + p.image, Images: []events.TemplateImage{{Container: "c", Image: p.image}}, ChangedAt: &p.started,
			ChangedBy: "kubectl",
		},
		Conditions: []events.Condition{{
			Type: "Progressing", Status: "True", Reason: reason, Message: message,
			LastUpdateTime: &at, LastTransitionTime: &p.started,
		}},
	}
}

func (p *app) subject() string { return cell.ObservedWorkload(p.a.id, "deployment", "shop", p.name) }

// send publishes an observation of the Deployment.
func (p *app) send() {
	p.a.w.t.Helper()
	p.a.publish(p.subject(), events.TypeObservedWorkload, p.observation())
}

func (p *app) sendSet(s *set) {
	p.a.w.t.Helper()
	m := p.meta(p.name+"-"+s.hash, s.uid, s.rv, s.created)
	p.a.publish(p.subject(), events.TypeObservedWorkloadRevision, events.ObservedWorkloadRevision{
		Object: m, Kind: events.WorkloadRevisionKindReplicaset, Workload: p.name, WorkloadUID: p.uid, Revision: s.revision,
		TemplateHash: s.hash,
	})
}

// roll starts a rollout.
func (p *app) roll(image string) {
	p.a.w.t.Helper()
	p.a.advance(1300 * time.Millisecond)
	p.started = p.a.now.Truncate(time.Second)
	p.image, p.generation, p.revision, p.updated = image, p.generation+1, p.revision+1, 1
	s := &set{
		uid: fmt.Sprintf("rs-%s-%d", p.name, p.revision), hash: fmt.Sprintf("h%d", p.revision), revision: p.revision,
		rv: p.a.next(), created: p.started,
	}
	p.sets = append(p.sets, s)
	p.rv = p.a.next()
	p.sendSet(s)
	p.send()
}

// step publishes progress.
func (p *app) step() {
	p.a.w.t.Helper()
	p.a.advance(3 * time.Second)
	p.updated++
	p.rv = p.a.next()
	p.send()
}

// finish completes the rollout.
func (p *app) finish() {
	p.a.w.t.Helper()
	p.a.advance(2500 * time.Millisecond)
	p.updated, p.current = p.replicas, p.replicas
	p.rv = p.a.next()
	p.send()
}

// delete deletes the Deployment.
func (p *app) delete() {
	p.a.w.t.Helper()
	p.a.advance(time.Second)
	p.rv = p.a.next()
	o := p.observation()
	o.Object.Verb = events.VerbDeleted
	p.a.publish(p.subject(), events.TypeObservedWorkload, o)
}
