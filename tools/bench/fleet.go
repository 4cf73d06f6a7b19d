package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
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
	benchCell  = topology.Cell("bench")
	benchAgent = int64(7)
	// templateHash is that of the ReplicaSet and the pod in testdata.
	templateHash = "5c68448ff6"
	clusterUID   = "00000000-0000-4000-8000-000000000000"
)

// fleet is any number of workspaces' objects, each like those in testdata but for its names and ids. It belongs to one agent.
type fleet struct {
	agent      int64
	deployment appsv1.Deployment
	replicaSet appsv1.ReplicaSet
	pod        corev1.Pod
	// prefix of the workspaces' names, so that two fleets have different objects.
	prefix string
	// workspaces are those that the objects belong to; those beyond it bear an id that nobody knows, or none where anonymous is set.
	workspaces []workspace.Workspace
	anonymous  bool
}

func newFleet(agent int64, prefix string) (*fleet, error) {
	f := &fleet{agent: agent, prefix: prefix}
	for raw, into := range map[*[]byte]any{&deploymentJSON: &f.deployment, &replicaSetJSON: &f.replicaSet, &podJSON: &f.pod} {
		if err := json.Unmarshal(*raw, into); err != nil {
			return nil, fmt.Errorf("read the objects to multiply: %w", err)
		}
	}
	return f, nil
}

// name of workspace i, which is its Deployment's.
func (f *fleet) name(i int) string {
	if i < len(f.workspaces) {
		return f.workspaces[i].Name
	}
	return fmt.Sprintf("%s%06d", f.prefix, i)
}

func (f *fleet) namespace(i int) string {
	return workspace.DefaultNamespacePrefix + strconv.FormatInt(f.agent, 10) + "-" + f.name(i)
}

// id gives each object and workspace its own UUID, always the same.
func (f *fleet) id(kind string, i int) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(kind+"/"+f.name(i)))
}

// identify gives an object of workspace i its names; it replaces every map that it changes, since copies share them.
func (f *fleet) identify(m *metav1.ObjectMeta, kind string, i, version int) {
	labels := make(map[string]string, len(m.Labels))
	maps.Copy(labels, m.Labels)
	labels[workspace.LabelAgent] = strconv.FormatInt(f.agent, 10)
	labels[workspace.LabelWorkspaceName] = f.name(i)
	switch {
	case i < len(f.workspaces):
		labels[workspace.LabelWorkspace] = f.workspaces[i].ID.String()
	case f.anonymous:
		delete(labels, workspace.LabelWorkspace)
	default:
		labels[workspace.LabelWorkspace] = f.id("workspace", i).String()
	}
	m.Labels = labels
	m.Namespace, m.UID, m.ResourceVersion = f.namespace(i), types.UID(f.id(kind, i).String()), strconv.Itoa(version)
}

// Deployment of workspace i at a version. Ready is false while its pod starts.
func (f *fleet) Deployment(i, version int, ready bool) *appsv1.Deployment {
	d := f.deployment.DeepCopy()
	f.identify(&d.ObjectMeta, "deployment", i, version)
	d.Name = f.name(i)
	if !ready {
		d.Status.AvailableReplicas, d.Status.ReadyReplicas, d.Status.UnavailableReplicas = 0, 0, 1
		d.Status.Conditions[0].Reason, d.Status.Conditions[0].Status = "MinimumReplicasUnavailable", corev1.ConditionFalse
		d.Status.Conditions[1].Reason = "ReplicaSetUpdated"
	}
	return d
}

// ReplicaSet of workspace i at a version.
func (f *fleet) ReplicaSet(i, version int) *appsv1.ReplicaSet {
	r := f.replicaSet.DeepCopy()
	f.identify(&r.ObjectMeta, "replicaset", i, version)
	r.Name = f.name(i) + "-" + templateHash
	r.OwnerReferences[0].Name, r.OwnerReferences[0].UID = f.name(i), types.UID(f.id("deployment", i).String())
	return r
}

// Pod of workspace i at a version.
func (f *fleet) Pod(i, version int) *corev1.Pod {
	p := f.pod.DeepCopy()
	f.identify(&p.ObjectMeta, "pod", i, version)
	p.Name = f.name(i) + "-" + templateHash + "-qvxkh"
	p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = f.name(
		i,
	)+"-"+templateHash, types.UID(
		f.id("replicaset", i).String(),
	)
	return p
}

// object is the object of a kind of workspace i, as JSON of the API server would give it to a watcher.
func (f *fleet) object(kind object.Kind, i, version int, ready bool) metav1.Object {
	switch kind {
	case object.Deployment:
		return f.Deployment(i, version, ready)
	case object.ReplicaSet:
		return f.ReplicaSet(i, version)
	default:
		return f.Pod(i, version)
	}
}

// observation is what a watcher publishes of an object, and the row that it becomes.
type observation struct {
	message *nats.Msg
	row     row
}

// row is an observation as a table's columns.
type row struct {
	kind, namespace, name, uid string
	version                    string
	workspace                  *uuid.UUID
	data                       string
}

// observe makes the observation of an object, as the watcher does.
func (f *fleet) observe(kind object.Kind, o metav1.Object, seen time.Time) (observation, error) {
	report, err := report.Reporter{
		Cell:       benchCell,
		Agent:      f.agent,
		ClusterUID: clusterUID,
	}.Observed(
		delivery.Delivery{Version: object.Version{
			Key: object.KeyOf(
				kind,
				o,
			),
			ResourceVersion: o.GetResourceVersion(),
			Verb:            events.VerbUpserted,
			Object:          o,
			ObservedAt:      seen,
		}},
	)
	if err != nil {
		return observation{}, fmt.Errorf("make an observation: %w", err)
	}
	message, err := event.Encode(report.Event, report.Subject)
	if err != nil {
		return observation{}, fmt.Errorf("make an observation: %w", err)
	}
	r := row{
		kind: string(kind), namespace: o.GetNamespace(), name: o.GetName(), uid: string(o.GetUID()),
		version: o.GetResourceVersion(), data: strings.Clone(string(message.Data)),
	}
	if id, err := uuid.Parse(o.GetLabels()[workspace.LabelWorkspace]); err == nil {
		r.workspace = &id
	}
	return observation{message: message, row: r}, nil
}
