package nats

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/canonical"
	"lockstep.internal/services/state/postgres"
)

// Paths of what is read of every observation.
const (
	pathClusterUID  = "object.cluster_uid"
	pathNamespace   = "object.namespace"
	pathName        = "object.name"
	pathUID         = "object.uid"
	pathVersion     = "object.resource_version"
	pathVerb        = "object.verb"
	pathUpdateType  = "object.update_type"
	pathObservedAt  = "object.observed_at"
	pathResyncID    = "object.resync_id"
	pathWorkspaceID = "object.workspace_id"
	pathDeployment  = "deployment"
)

// observable is a kind of object that is observed.
type observable struct {
	kind string
	// shape of its observations as watchers spell them. What it accepts the schema of their type allows.
	shape *canonical.Shape
	// owner is the path of the name of the Deployment that it belongs to.
	owner string
	// decode reads what is spelled in any other way: the object, its owner, and all of it anew.
	decode func(data []byte) (*events.ObjectMeta, string, any, error)
}

// observables by event type, made once when they are first asked for: they are constant, but for that errors cannot be.
var observables = sync.OnceValues(makeObservables)

func makeObservables() (map[string]observable, error) {
	deployment, deploymentErr := newObservable(postgres.KindDeployment, pathName, func(d *events.ObservedDeployment) (*events.ObjectMeta, string) {
		return &d.Object, d.Object.Name
	}, nil)
	replicaSet, replicaSetErr := newObservable(postgres.KindReplicaSet, pathDeployment, func(d *events.ObservedReplicaSet) (*events.ObjectMeta, string) {
		return &d.Object, d.Deployment
	}, nil)
	pod, podErr := newObservable(postgres.KindPod, pathDeployment, func(d *events.ObservedPod) (*events.ObjectMeta, string) {
		return &d.Object, d.Deployment
	}, map[string]canonical.Rule{
		"containers[].name":  {NotEmpty: true},
		"containers[].state": {OneOf: []string{string(events.ContainerStatusWaiting), string(events.ContainerStatusRunning), string(events.ContainerStatusTerminated)}},
	})
	for _, err := range []error{deploymentErr, replicaSetErr, podErr} {
		if err != nil {
			return nil, err
		}
	}
	return map[string]observable{
		events.TypeObservedDeployment: deployment, events.TypeObservedReplicaSet: replicaSet, events.TypeObservedPod: pod,
	}, nil
}

func newObservable[T any](kind, owner string, of func(*T) (*events.ObjectMeta, string), more map[string]canonical.Rule) (observable, error) {
	rules := map[string]canonical.Rule{
		pathClusterUID:  {NotEmpty: true, Keep: true},
		pathNamespace:   {Keep: true},
		pathName:        {NotEmpty: true, Keep: true},
		pathUID:         {NotEmpty: true, Keep: true},
		pathVersion:     {NotEmpty: true, Keep: true}, // whether it is one is looked at later, in any case
		pathVerb:        {OneOf: []string{string(events.VerbUpserted), string(events.VerbDeleted)}, Keep: true},
		pathUpdateType:  {OneOf: []string{string(events.UpdateTypePartial), string(events.UpdateTypeFull)}},
		pathObservedAt:  {Keep: true},
		pathResyncID:    {Keep: true},
		pathWorkspaceID: {Keep: true},
	}
	if kind != postgres.KindReplicaSet {
		rules["conditions[].type"], rules["conditions[].status"] = canonical.Rule{NotEmpty: true}, canonical.Rule{NotEmpty: true}
	}
	if owner == pathDeployment {
		rules[pathDeployment] = canonical.Rule{NotEmpty: true, Keep: true}
	}
	maps.Copy(rules, more)
	var example T
	shape, err := canonical.Of(example, rules)
	if err != nil {
		return observable{}, fmt.Errorf("observations of a %s: %w", kind, err)
	}
	return observable{kind: kind, shape: shape, owner: owner, decode: func(data []byte) (*events.ObjectMeta, string, any, error) {
		var d T
		if err := json.Unmarshal(data, &d); err != nil {
			return nil, "", nil, err //nolint:wrapcheck // said by who asks
		}
		meta, owner := of(&d)
		return meta, owner, &d, nil
	}}, nil
}

// object reads an observation of a kind. Its place is <kind of the owner>/<namespace>/<name of the owner>.
func (k observable) object(o *Observed, e said) error {
	meta, owner, data, err := k.read(e)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if want := postgres.KindDeployment + "/" + meta.Namespace + "/" + owner; e.place != want {
		return fmt.Errorf("object %.200q: does not belong on subject %s", want, e.subject)
	}
	return observe(o, meta, k.kind, data)
}

// read gives what is needed of the object, the name of its Deployment, and its data for the database.
//
// The data is what Go makes of it, since what PostgreSQL would not take (invalid UTF-8, lone surrogates, endless numbers) can only be in what is not read.
// Watchers send it so: that is seen in one pass, which spares decoding it, encoding it and asking its schema, all but everything of the time of reading a stream.
func (k observable) read(e said) (*events.ObjectMeta, string, string, error) {
	text, kept := string(e.Data()), make([]string, k.shape.Slots())
	if k.shape.Read(text, kept) {
		of := func(path string) string { return kept[k.shape.Slot(path)] }
		at, err := time.Parse(time.RFC3339Nano, of(pathObservedAt))
		return &events.ObjectMeta{
			ClusterUID: of(pathClusterUID), Namespace: of(pathNamespace), Name: of(pathName), UID: of(pathUID), ResourceVersion: of(pathVersion),
			Verb: events.Verb(of(pathVerb)), ObservedAt: at, ResyncID: of(pathResyncID), WorkspaceID: of(pathWorkspaceID),
		}, of(k.owner), text, err
	}
	if err := events.Validate(e.Type(), e.Data()); err != nil {
		return nil, "", "", err
	}
	meta, owner, all, err := k.decode(e.Data())
	if err != nil {
		return nil, "", "", err
	}
	clean, err := json.Marshal(all)
	if err != nil {
		return nil, "", "", err //nolint:wrapcheck // said by object
	}
	return meta, owner, string(withoutZeroBytes(clean)), nil
}
