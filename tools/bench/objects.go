package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/report"
)

// The objects of one workspace as a kubelab's API server returned them: managed fields, status and all.
//
//go:embed testdata/deployment.json
var deploymentJSON []byte

//go:embed testdata/replicaset.json
var replicaSetJSON []byte

//go:embed testdata/pod.json
var podJSON []byte

const (
	// templateHash is that of the ReplicaSet and the pod in testdata.
	templateHash = "5c68448ff6"
	clusterUID   = "00000000-0000-4000-8000-000000000000"
)

// objects makes the objects of any number of workspaces of an agent: copies of those in testdata with other names and
// ids.
type objects struct {
	agent      int64
	deployment appsv1.Deployment
	replicaSet appsv1.ReplicaSet
	pod        corev1.Pod
	// prefix of the names of workspaces.
	prefix string
	// workspaces are the existing ones. Others have an id that does not exist, or none if anonymous is set.
	workspaces []workspace.Workspace
	anonymous  bool
}

func newObjects(agent int64, prefix string) *objects {
	o := &objects{agent: agent, prefix: prefix}
	check(errors.Join(json.Unmarshal(deploymentJSON, &o.deployment), json.Unmarshal(replicaSetJSON, &o.replicaSet),
		json.Unmarshal(podJSON, &o.pod)))
	return o
}

// name returns the name of workspace i and its Deployment.
func (o *objects) name(i int) string {
	if i < len(o.workspaces) {
		return o.workspaces[i].Name
	}
	return fmt.Sprintf("%s%06d", o.prefix, i)
}

func (o *objects) namespace(i int) string {
	return workspace.DefaultNamespacePrefix + strconv.FormatInt(o.agent, 10) + "-" + o.name(i)
}

// id returns the UUID of an object or workspace.
func (o *objects) id(kind string, i int) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(kind+"/"+o.name(i)))
}

// identify sets the labels, names and ids of an object of workspace i.
func (o *objects) identify(m *metav1.ObjectMeta, kind string, i, version int) {
	labels := make(map[string]string, len(m.Labels))
	maps.Copy(labels, m.Labels)
	labels[workspace.LabelAgent] = strconv.FormatInt(o.agent, 10)
	labels[workspace.LabelWorkspaceName] = o.name(i)
	switch {
	case i < len(o.workspaces):
		labels[workspace.LabelWorkspace] = o.workspaces[i].ID.String()
	case o.anonymous:
		delete(labels, workspace.LabelWorkspace)
	default:
		labels[workspace.LabelWorkspace] = o.id("workspace", i).String()
	}
	m.Labels = labels
	m.Namespace, m.UID, m.ResourceVersion = o.namespace(i), types.UID(o.id(kind, i).String()), strconv.Itoa(version)
	later(i, &m.CreationTimestamp)
}

// later moves times of workspace i by i seconds.
func later(i int, times ...*metav1.Time) {
	for _, t := range times {
		t.Time = t.Add(time.Duration(i) * time.Second)
	}
}

// Deployment returns the Deployment of workspace i at a version. It is not ready while its pod starts.
func (o *objects) Deployment(i, version int, ready bool) *appsv1.Deployment {
	d := o.deployment.DeepCopy()
	o.identify(&d.ObjectMeta, "deployment", i, version)
	d.Name = o.name(i)
	for n := range d.Status.Conditions {
		later(i, &d.Status.Conditions[n].LastTransitionTime, &d.Status.Conditions[n].LastUpdateTime)
	}
	if !ready {
		d.Status.AvailableReplicas, d.Status.ReadyReplicas, d.Status.UnavailableReplicas = 0, 0, 1
		d.Status.Conditions[0].Reason, d.Status.Conditions[0].Status = "MinimumReplicasUnavailable", corev1.ConditionFalse
		d.Status.Conditions[1].Reason = "ReplicaSetUpdated"
	}
	return d
}

// ReplicaSet returns the ReplicaSet of workspace i at a version.
func (o *objects) ReplicaSet(i, version int) *appsv1.ReplicaSet {
	r := o.replicaSet.DeepCopy()
	o.identify(&r.ObjectMeta, "replicaset", i, version)
	r.Name = o.name(i) + "-" + templateHash
	r.OwnerReferences[0].Name, r.OwnerReferences[0].UID = o.name(i), types.UID(o.id("deployment", i).String())
	return r
}

// Pod returns the pod of workspace i at a version.
func (o *objects) Pod(i, version int) *corev1.Pod {
	p := o.pod.DeepCopy()
	o.identify(&p.ObjectMeta, "pod", i, version)
	replicaSet := o.name(i) + "-" + templateHash
	p.Name = replicaSet + "-qvxkh"
	p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = replicaSet, types.UID(o.id("replicaset", i).String())
	for n := range p.Status.Conditions {
		later(i, &p.Status.Conditions[n].LastTransitionTime)
	}
	for n := range p.Status.ContainerStatuses {
		later(i, &p.Status.ContainerStatuses[n].State.Running.StartedAt)
	}
	return p
}

// observation is what a watcher publishes of an object, and the row that it becomes.
type observation struct {
	message *nats.Msg
	row     row
}

// row has the columns of an observation in a table.
type row struct {
	kind, namespace, name, uid string
	version                    string
	workspace                  *uuid.UUID
	data                       string
}

// observe returns the observation of an object of workspace i, as a watcher makes it.
func (o *objects) observe(kind object.Kind, i, version int, ready bool) observation {
	var observed metav1.Object
	switch kind {
	case object.Deployment:
		observed = o.Deployment(i, version, ready)
	case object.ReplicaSet:
		observed = &metav1.PartialObjectMetadata{ObjectMeta: o.ReplicaSet(i, version).ObjectMeta}
	default:
		observed = o.Pod(i, version)
	}
	reporter := report.Reporter{Cell: benchCell, Agent: o.agent, ClusterUID: clusterUID}
	reported := must(reporter.Observed(delivery.Delivery{Version: object.Version{
		Kind:            kind,
		ResourceVersion: observed.GetResourceVersion(),
		Verb:            events.VerbUpserted,
		Object:          observed,
		ObservedAt:      time.Now(),
	}}))
	message := must(event.Encode(reported.Event, reported.Subject))
	r := row{
		kind: string(kind), namespace: observed.GetNamespace(), name: observed.GetName(), uid: string(observed.GetUID()),
		version: observed.GetResourceVersion(), data: string(message.Data),
	}
	if id, err := uuid.Parse(observed.GetLabels()[workspace.LabelWorkspace]); err == nil {
		r.workspace = &id
	}
	return observation{message: message, row: r}
}
