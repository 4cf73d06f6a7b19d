// Package played plays a watcher for tests: messages of the stream OBSERVED as one would tell of
// Deployments, at times that the test says.
package played

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// Namespace of all Deployments.
const Namespace = "shop"

// Watcher is that of an agent in one cluster. Its messages are given to Say, whose error ends the
// telling.
type Watcher struct {
	Cell topology.Cell
	Now  time.Time
	Say  func(*nats.Msg) error
	// Agent and Cluster default to [AgentID] and the constant [Cluster].
	Agent   int64
	Cluster string
	// Versions that its cluster's store has given out.
	Versions int

	events int
	resync string
}

// AgentID of the agent that is told of no other.
const AgentID = 1

// Cluster is the UID of the cluster, likewise.
const Cluster = "cluster-1"

func (w *Watcher) agent() int64 { return cmp.Or(w.Agent, AgentID) }

func (w *Watcher) cluster() string { return cmp.Or(w.Cluster, Cluster) }

func (w *Watcher) say(subject, kind string, data any) error {
	w.events++
	e, err := event.New(event.Attributes{
		Type:    kind,
		Source:  event.AgentSource(string(w.Cell), w.agent(), "watcher"),
		Subject: "s",
		ID:      strconv.FormatInt(w.agent(), 10) + "/" + strconv.Itoa(w.events),
		Time:    w.Now,
	}, data)
	if err != nil {
		return fmt.Errorf("played: %w", err)
	}
	msg, err := event.Encode(e, subject)
	if err != nil {
		return fmt.Errorf("played: %w", err)
	}
	return w.Say(msg)
}

func (w *Watcher) next() string {
	w.Versions++
	return strconv.Itoa(100 + w.Versions)
}

// Tick says what time it is, 15 seconds later.
func (w *Watcher) Tick() error {
	w.Now = w.Now.Add(15 * time.Second)
	return w.say(
		w.Cell.ObservedTick(w.agent()),
		events.TypeObservedTick,
		events.ObservedTick{ClusterUID: w.cluster(), ObservedAt: w.Now},
	)
}

// List is a full resync with these Deployments.
func (w *Watcher) List(id string, deployments ...*Deployment) error {
	w.resync = id
	defer func() { w.resync = "" }()
	w.Now = w.Now.Add(time.Second)
	count := 2 * len(deployments)
	listed := strconv.Itoa(100 + w.Versions)
	err := w.say(w.Cell.ObservedResync(w.agent()), events.TypeObservedResyncBegun, map[string]any{
		"resync_id":   id,
		"cluster_uid": w.cluster(),
		"cause":       "start",
		"count":       count,
		"observed_at": w.Now,
		"scope":       "workloads",
		"selection":   "all",
		"list_versions": []map[string]string{
			{"kind": "deployment", "resource_version": listed},
			{"kind": "replicaset", "resource_version": listed},
		},
	})
	for _, d := range deployments {
		if err == nil {
			err = d.Tell()
		}
		if err == nil {
			err = d.tellSet()
		}
	}
	if err != nil {
		return err
	}
	w.Now = w.Now.Add(time.Second)
	return w.say(w.Cell.ObservedResync(w.agent()), events.TypeObservedResyncEnded, map[string]any{
		"resync_id": id, "cluster_uid": w.cluster(), "count": count, "observed_at": w.Now, "scope": "workloads",
	})
}

// As is the same Deployment as another watcher tells of it: one of the same cluster, or one that
// says it is.
func (d *Deployment) As(w *Watcher) *Deployment {
	same := *d
	same.w = w
	return &same
}

// Deployment is one of three pods.
type Deployment struct {
	w                  *Watcher
	name, image        string
	version, set       string
	revision           int
	updated, available int
	started            time.Time
	annotations        map[string]string
}

const replicas = 3

// Deployment makes one whose first rollout is over; nothing is told.
func (w *Watcher) Deployment(name string, annotations map[string]string) *Deployment {
	return &Deployment{
		w: w, name: name, image: "registry.example/" + name + ":1", revision: 1, updated: replicas, available: replicas,
		started: w.Now.Truncate(time.Second), set: w.next(), version: w.next(), annotations: annotations,
	}
}

func (d *Deployment) meta(name, uid, version string, created time.Time) events.ObjectMeta {
	m := events.ObjectMeta{
		ClusterUID:      d.w.cluster(),
		Namespace:       Namespace,
		Name:            name,
		UID:             uid,
		ResourceVersion: version,
		Verb:            events.VerbUpserted,
		UpdateType:      events.UpdateTypePartial,
		ObservedAt:      d.w.Now,
		CreatedAt:       &created,
		Annotations:     d.annotations,
		Labels:          map[string]string{"app": d.name},
	}
	if d.w.resync != "" {
		m.UpdateType, m.ResyncID = events.UpdateTypeFull, d.w.resync
	}
	return m
}

func (d *Deployment) hash() string { return "h" + strconv.Itoa(d.revision) }

// Tell tells how it is.
func (d *Deployment) Tell() error {
	at := d.w.Now.Truncate(time.Second)
	reason, message := "ReplicaSetUpdated", "is progressing"
	if d.updated == replicas && d.available == replicas {
		reason, message = "NewReplicaSetAvailable", "has successfully progressed"
	}
	count, none := replicas, 0
	return d.w.say(
		d.w.Cell.ObservedWorkload(d.w.agent(), "deployment", Namespace, d.name),
		events.TypeObservedWorkload,
		events.ObservedWorkload{
			Object: d.meta(
				d.name,
				"uid-"+d.name,
				d.version,
				d.w.Now.Add(-time.Hour).Truncate(time.Hour),
			),
			Kind:                events.WorkloadKindDeployment,
			Generation:          d.revision,
			ObservedGeneration:  d.revision,
			SpecReplicas:        &count,
			HasStatus:           true,
			Strategy:            "RollingUpdate",
			Revision:            d.revision,
			Replicas:            replicas,
			UpdatedReplicas:     d.updated,
			ReadyReplicas:       d.available,
			AvailableReplicas:   d.available,
			UnavailableReplicas: replicas - d.available,
			TerminatingReplicas: &none,
			Template: &events.PodTemplate{
				Digest:    "d-" + d.image,
				Images:    []events.TemplateImage{{Container: "c", Image: d.image}},
				ChangedAt: &d.started,
				ChangedBy: "kubectl",
			},
			Conditions: []events.Condition{
				{
					Type:               "Progressing",
					Status:             "True",
					Reason:             reason,
					Message:            fmt.Sprintf("ReplicaSet %q %s.", d.name+"-"+d.hash(), message),
					LastUpdateTime:     &at,
					LastTransitionTime: &d.started,
				},
			},
		},
	)
}

func (d *Deployment) tellSet() error {
	return d.w.say(
		d.w.Cell.ObservedWorkload(d.w.agent(), "deployment", Namespace, d.name),
		events.TypeObservedWorkloadRevision,
		events.ObservedWorkloadRevision{
			Object: d.meta(
				d.name+"-"+d.hash(),
				"rs-"+d.name+"-"+strconv.Itoa(d.revision),
				d.set,
				d.started,
			),
			Kind:         events.WorkloadRevisionKindReplicaset,
			Workload:     d.name,
			WorkloadUID:  "uid-" + d.name,
			Revision:     d.revision,
			TemplateHash: d.hash(),
		},
	)
}

// Roll begins a rollout of an image's tag.
func (d *Deployment) Roll(tag string) error {
	d.w.Now = d.w.Now.Add(1300 * time.Millisecond)
	d.started = d.w.Now.Truncate(time.Second)
	d.image, d.updated = "registry.example/"+d.name+":"+tag, 1
	d.revision++
	d.set, d.version = d.w.next(), d.w.next()
	if err := d.tellSet(); err != nil {
		return err
	}
	return d.Tell()
}

// Step is progress: one more pod is new.
func (d *Deployment) Step() error {
	d.w.Now = d.w.Now.Add(3 * time.Second)
	d.updated, d.available = d.updated+1, replicas-1
	d.version = d.w.next()
	return d.Tell()
}

// Finish ends the rollout well.
func (d *Deployment) Finish() error {
	d.w.Now = d.w.Now.Add(2500 * time.Millisecond)
	d.updated, d.available = replicas, replicas
	d.version = d.w.next()
	return d.Tell()
}
