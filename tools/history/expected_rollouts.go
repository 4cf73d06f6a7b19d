package history

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
)

// ObjectVersion is one version of an object as the API server reported it to a watch.
type ObjectVersion struct {
	At      time.Time
	Deleted bool
	Object  metav1.Object
}

func (s ObjectVersion) version() uint64 {
	version, _ := strconv.ParseUint(s.Object.GetResourceVersion(), 10, 64)
	return version
}

const (
	deploymentRevision = "deployment.kubernetes.io/revision"
	deploymentHistory  = "deployment.kubernetes.io/revision-history"
	templateGeneration = appsv1.DeprecatedTemplateGeneration
)

// ExpectedRollouts derives the rollouts of a cluster from versions of Deployments, ReplicaSets,
// StatefulSets, ControllerRevisions and DaemonSets, in any order. It sorts them by resource version
// and returns workloads in the order of their creation.
func ExpectedRollouts(cluster string, versions []ObjectVersion) []ExpectedWorkload {
	versions = slices.Clone(versions)
	slices.SortStableFunc(versions, func(a, b ObjectVersion) int { return cmp.Compare(a.version(), b.version()) })
	v := reader{cluster: cluster, lifecycles: map[string]*lifecycle{}}
	for _, s := range versions {
		v.add(s)
	}
	workloads := make([]ExpectedWorkload, len(v.order))
	for i, l := range v.order {
		workloads[i] = l.ExpectedWorkload
	}
	return workloads
}

// Trace sets Traced of each rollout from the messages of OBSERVED.
func Trace(expected []ExpectedWorkload, observed []Record) Findings {
	type revision struct {
		uid    string
		number int
	}
	var f Findings
	traced := map[revision]bool{}
	each(&f, observed, events.TypeObservedWorkloadRevision, func(_ Record, r events.ObservedWorkloadRevision) {
		if r.Object.Verb == events.VerbUpserted {
			traced[revision{r.WorkloadUID, r.Revision}] = true
		}
	})
	for _, w := range expected {
		for i := range w.Rollouts {
			w.Rollouts[i].Traced = traced[revision{w.UID, w.Rollouts[i].Revision}]
		}
	}
	return f
}

// lifecycle is a workload from its creation to its deletion.
type lifecycle struct {
	ExpectedWorkload

	newest map[string]int  // revision by name of the ControllerRevision
	uids   map[string]bool // of known ControllerRevisions
}

type reader struct {
	cluster    string
	lifecycles map[string]*lifecycle // by UID
	order      []*lifecycle
}

func (v *reader) add(s ObjectVersion) {
	switch o := s.Object.(type) {
	case *appsv1.Deployment:
		l := v.lifecycle(s, "deployment")
		st := o.Status
		if st.ObservedGeneration >= o.Generation &&
			full(o.Spec.Replicas, st.Replicas, st.UpdatedReplicas, st.AvailableReplicas) {
			l.complete(number(o.Annotations[deploymentRevision]), progressed(st.Conditions)...)
		}
	case *appsv1.StatefulSet:
		l := v.lifecycle(s, "statefulset")
		st := o.Status
		// A StatefulSet with OnDelete never reports that it has reached its new revision.
		isCurrent := st.CurrentRevision == st.UpdateRevision ||
			o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
		if st.ObservedGeneration >= o.Generation && isCurrent &&
			full(o.Spec.Replicas, st.Replicas, st.UpdatedReplicas, st.AvailableReplicas) {
			l.complete(l.newest[st.UpdateRevision])
		}
	case *appsv1.DaemonSet:
		l := v.lifecycle(s, "daemonset")
		revision := number(o.Annotations[templateGeneration])
		l.start(s, revision, fmt.Sprintf("%s/%s/%d", v.cluster, o.UID, revision))
		st := o.Status
		if st.ObservedGeneration >= o.Generation && st.ObservedGeneration > 0 &&
			st.UpdatedNumberScheduled == st.DesiredNumberScheduled &&
			st.NumberAvailable == st.DesiredNumberScheduled {
			l.complete(revision)
		}
	case *appsv1.ReplicaSet:
		if l := v.owner(s); l != nil {
			revision := number(o.Annotations[deploymentRevision])
			l.start(s, revision,
				fmt.Sprintf("%s/%s/%d/%s", v.cluster, l.UID, revision, o.Labels[appsv1.DefaultDeploymentUniqueLabelKey]))
			if o.Annotations[deploymentHistory] == "" {
				l.create(revision, o)
			}
		}
	case *appsv1.ControllerRevision:
		if l := v.owner(s); l != nil && metav1.GetControllerOf(o).Kind == "StatefulSet" {
			isKnown := l.uids[string(o.UID)]
			l.uids[string(o.UID)] = true
			l.newest[o.Name] = int(o.Revision)
			l.start(s, int(o.Revision), fmt.Sprintf("%s/%s/%s/%d", v.cluster, l.UID, o.Name, o.Revision))
			if !isKnown {
				l.create(int(o.Revision), o)
			}
		}
	}
}

// lifecycle returns the lifecycle of the workload, which begins with its first version.
func (v *reader) lifecycle(s ObjectVersion, kind string) *lifecycle {
	uid := string(s.Object.GetUID())
	l := v.lifecycles[uid]
	if l == nil {
		l = &lifecycle{
			ExpectedWorkload: ExpectedWorkload{
				UID:     uid,
				Name:    s.Object.GetNamespace() + "/" + kind + "/" + s.Object.GetName(),
				Created: s.At,
			},
			newest: map[string]int{},
			uids:   map[string]bool{},
		}
		v.lifecycles[uid], v.order = l, append(v.order, l)
	}
	if s.Deleted {
		l.Deleted = s.At
	}
	for _, m := range s.Object.GetManagedFields() {
		if m.Time != nil && m.FieldsV1 != nil && bytes.Contains(m.FieldsV1.GetRawBytes(), []byte(`"f:template"`)) {
			l.TemplateChangedAt = append(l.TemplateChangedAt, m.Time.Time)
		}
	}
	return l
}

// owner returns the lifecycle of the owner, or nil if there is none or the owner is deleted: its
// controller may act a moment longer.
func (v *reader) owner(s ObjectVersion) *lifecycle {
	owner := metav1.GetControllerOf(s.Object)
	if owner == nil || s.Deleted {
		return nil
	}
	if l := v.lifecycles[string(owner.UID)]; l != nil && l.Deleted.IsZero() {
		return l
	}
	return nil
}

func (l *lifecycle) start(s ObjectVersion, revision int, id string) {
	if n := len(l.Rollouts); revision > 0 && !s.Deleted && (n == 0 || revision > l.Rollouts[n-1].Revision) {
		l.Rollouts = append(l.Rollouts, ExpectedRollout{ID: id, Revision: revision, StartedAt: s.At})
	}
}

// create records the object that was created for a revision.
func (l *lifecycle) create(revision int, o metav1.Object) {
	if n := len(l.Rollouts); n > 0 && l.Rollouts[n-1].Revision == revision && l.Rollouts[n-1].CreatedAt.IsZero() {
		l.Rollouts[n-1].CreatedAt = o.GetCreationTimestamp().Time
	}
}

// complete records completion of the newest revision only: that of older ones was recorded before.
func (l *lifecycle) complete(revision int, ends ...time.Time) {
	if n := len(l.Rollouts); n > 0 && l.Rollouts[n-1].Revision == revision {
		l.Rollouts[n-1].Completed = true
		l.Rollouts[n-1].CompletedAt = append(l.Rollouts[n-1].CompletedAt, ends...)
	}
}

// progressed returns when a Deployment's controller last reported progress.
func progressed(conditions []appsv1.DeploymentCondition) []time.Time {
	for _, c := range conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return []time.Time{c.LastUpdateTime.Time}
		}
	}
	return nil
}

func full(want *int32, counts ...int32) bool {
	wanted := int32(1)
	if want != nil {
		wanted = *want
	}
	return !slices.ContainsFunc(counts, func(n int32) bool { return n != wanted })
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
