// Package watchertest simulates a watcher for tests: it publishes observations of Deployments, at times that the test
// sets.
package watchertest

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

// Namespace is the namespace of all Deployments.
const Namespace = "shop"

// Watcher is the watcher of an agent in one cluster.
type Watcher struct {
	Cell topology.Cell
	Now  time.Time
	// Publish publishes a message.
	Publish func(*nats.Msg) error
	// Agent and Cluster default to [AgentID] and the constant [Cluster].
	Agent   int64
	Cluster string
	// Versions is the number of resource versions that the cluster has assigned.
	Versions int

	events int
	resync string
}

// AgentID is the default agent.
const AgentID = 1

// Cluster is the UID of the default cluster.
const Cluster = "cluster-1"

func (w *Watcher) agent() int64 { return cmp.Or(w.Agent, AgentID) }

func (w *Watcher) cluster() string { return cmp.Or(w.Cluster, Cluster) }

func (w *Watcher) publish(subject, kind string, data any) error {
	w.events++
	e, err := event.New(event.Attributes{
		Type:    kind,
		Source:  event.AgentSource(string(w.Cell), w.agent(), "watcher"),
		Subject: "s",
		ID:      strconv.FormatInt(w.agent(), 10) + "/" + strconv.Itoa(w.events),
		Time:    w.Now,
	}, data)
	if err != nil {
		return fmt.Errorf("simulate a watcher: %w", err)
	}
	msg, err := event.Encode(e, subject)
	if err != nil {
		return fmt.Errorf("simulate a watcher: %w", err)
	}
	return w.Publish(msg)
}

func (w *Watcher) nextVersion() string {
	w.Versions++
	return strconv.Itoa(100 + w.Versions)
}

// Tick publishes a tick of the clock, 15 seconds later.
func (w *Watcher) Tick() error {
	w.Now = w.Now.Add(15 * time.Second)
	return w.publish(w.Cell.ObservedTick(w.agent()), events.TypeObservedTick,
		events.ObservedTick{ClusterUID: w.cluster(), ObservedAt: w.Now})
}

// List publishes a full resync with these Deployments.
func (w *Watcher) List(id string, deployments ...*Deployment) error {
	w.resync = id
	defer func() { w.resync = "" }()
	w.Now = w.Now.Add(time.Second)
	count := 2 * len(deployments)
	listed := strconv.Itoa(100 + w.Versions)
	err := w.publish(w.Cell.ObservedResync(w.agent()), events.TypeObservedResyncBegun, map[string]any{
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
			err = d.Observe()
		}
		if err == nil {
			err = d.observeReplicaSet()
		}
	}
	if err != nil {
		return err
	}
	w.Now = w.Now.Add(time.Second)
	return w.publish(w.Cell.ObservedResync(w.agent()), events.TypeObservedResyncEnded, map[string]any{
		"resync_id": id, "cluster_uid": w.cluster(), "count": count, "observed_at": w.Now, "scope": "workloads",
	})
}

// As returns the same Deployment as another watcher reports it: a watcher of the same cluster, or one that claims to
// be.
func (d *Deployment) As(w *Watcher) *Deployment {
	same := *d
	same.w = w
	return &same
}

// Deployment is a Deployment with three pods.
type Deployment struct {
	w                  *Watcher
	name, image        string
	version, set       string
	revision, scalings int
	pods               int
	updated, available int
	started            time.Time
	annotations        map[string]string
}

const replicas = 3

// Deployment returns a Deployment whose first rollout is complete. It publishes nothing.
func (w *Watcher) Deployment(name string, annotations map[string]string) *Deployment {
	return &Deployment{
		w: w, name: name, image: "registry.example/" + name + ":1", revision: 1,
		pods: replicas, updated: replicas, available: replicas,
		started: w.Now.Truncate(time.Second), set: w.nextVersion(), version: w.nextVersion(), annotations: annotations,
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

// Observe publishes the current state.
func (d *Deployment) Observe() error {
	at := d.w.Now.Truncate(time.Second)
	reason, message := "ReplicaSetUpdated", "is progressing"
	if d.updated == d.pods && d.available == d.pods {
		reason, message = "NewReplicaSetAvailable", "has successfully progressed"
	}
	count, none := d.pods, 0
	return d.w.publish(
		d.w.Cell.ObservedWorkload(d.w.agent(), "deployment", Namespace, d.name),
		events.TypeObservedWorkload,
		events.ObservedWorkload{
			Object:              d.meta(d.name, "uid-"+d.name, d.version, d.w.Now.Add(-time.Hour).Truncate(time.Hour)),
			Kind:                events.WorkloadKindDeployment,
			Generation:          d.revision + d.scalings,
			ObservedGeneration:  d.revision + d.scalings,
			SpecReplicas:        &count,
			HasStatus:           true,
			Strategy:            "RollingUpdate",
			Revision:            d.revision,
			Replicas:            max(d.updated, min(d.pods, replicas)),
			UpdatedReplicas:     d.updated,
			ReadyReplicas:       d.available,
			AvailableReplicas:   d.available,
			UnavailableReplicas: max(0, d.pods-d.available),
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

func (d *Deployment) observeReplicaSet() error {
	return d.w.publish(
		d.w.Cell.ObservedWorkload(d.w.agent(), "deployment", Namespace, d.name),
		events.TypeObservedWorkloadRevision,
		events.ObservedWorkloadRevision{
			Object:       d.meta(d.name+"-"+d.hash(), "rs-"+d.name+"-"+strconv.Itoa(d.revision), d.set, d.started),
			Kind:         events.WorkloadRevisionKindReplicaset,
			Workload:     d.name,
			WorkloadUID:  "uid-" + d.name,
			Revision:     d.revision,
			TemplateHash: d.hash(),
		},
	)
}

// Roll starts a rollout of a tag of the image.
func (d *Deployment) Roll(tag string) error {
	d.w.Now = d.w.Now.Add(1300 * time.Millisecond)
	d.started = d.w.Now.Truncate(time.Second)
	d.image, d.updated = "registry.example/"+d.name+":"+tag, 1
	d.revision++
	d.set, d.version = d.w.nextVersion(), d.w.nextVersion()
	if err := d.observeReplicaSet(); err != nil {
		return err
	}
	return d.Observe()
}

// Step updates one more pod.
func (d *Deployment) Step() error {
	d.w.Now = d.w.Now.Add(3 * time.Second)
	d.updated, d.available = d.updated+1, d.pods-1
	d.version = d.w.nextVersion()
	return d.Observe()
}

// Finish completes the rollout.
func (d *Deployment) Finish() error {
	d.w.Now = d.w.Now.Add(2500 * time.Millisecond)
	d.updated, d.available = d.pods, d.pods
	d.version = d.w.nextVersion()
	return d.Observe()
}

// Scale changes the number of desired pods. Finish completes it.
func (d *Deployment) Scale(pods int) error {
	d.w.Now = d.w.Now.Add(1500 * time.Millisecond)
	d.pods, d.scalings = pods, d.scalings+1
	d.version = d.w.nextVersion()
	return d.Observe()
}
