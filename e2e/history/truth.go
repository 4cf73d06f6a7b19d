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
)

// Sight is one version of an object as the API server told it to a watch.
type Sight struct {
	At      time.Time
	Deleted bool
	Object  metav1.Object
}

func (s Sight) version() uint64 {
	version, _ := strconv.ParseUint(s.Object.GetResourceVersion(), 10, 64)
	return version
}

const (
	deploymentRevision = "deployment.kubernetes.io/revision"
	deploymentHistory  = "deployment.kubernetes.io/revision-history"
	templateGeneration = appsv1.DeprecatedTemplateGeneration
)

// Truth is what the cluster did with its workloads, of everything that was seen of Deployments,
// ReplicaSets, StatefulSets, ControllerRevisions and DaemonSets, in any order: one store numbers
// them all. Workloads come in the order of their creation.
func Truth(cluster string, sights []Sight) []TrueWorkload {
	sights = slices.Clone(sights)
	slices.SortStableFunc(sights, func(a, b Sight) int { return cmp.Compare(a.version(), b.version()) })
	v := viewer{cluster: cluster, lives: map[string]*life{}}
	for _, s := range sights {
		v.see(s)
	}
	truth := make([]TrueWorkload, len(v.order))
	for i, l := range v.order {
		truth[i] = l.TrueWorkload
	}
	return truth
}

// life of one workload.
type life struct {
	TrueWorkload

	// newest number by the name of the ControllerRevision, and the UIDs of those that bore one.
	newest  map[string]int
	bearers map[string]bool
}

type viewer struct {
	cluster string
	lives   map[string]*life // by UID
	order   []*life
}

func (v *viewer) see(s Sight) {
	switch o := s.Object.(type) {
	case *appsv1.Deployment:
		l := v.life(s, "deployment")
		st := o.Status
		if st.ObservedGeneration >= o.Generation &&
			full(o.Spec.Replicas, st.Replicas, st.UpdatedReplicas, st.AvailableReplicas) {
			l.done(number(o.Annotations[deploymentRevision]), progressed(st.Conditions)...)
		}
	case *appsv1.StatefulSet:
		l := v.life(s, "statefulset")
		st := o.Status
		// One that waits for somebody to delete its pods is never said to have come to its new
		// revision.
		arrived := st.CurrentRevision == st.UpdateRevision ||
			o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
		if st.ObservedGeneration >= o.Generation && arrived &&
			full(o.Spec.Replicas, st.Replicas, st.UpdatedReplicas, st.AvailableReplicas) {
			l.done(l.newest[st.UpdateRevision])
		}
	case *appsv1.DaemonSet:
		l := v.life(s, "daemonset")
		revision := number(o.Annotations[templateGeneration])
		l.began(s, revision, fmt.Sprintf("%s/%s/%d", v.cluster, o.UID, revision))
		st := o.Status
		if st.ObservedGeneration >= o.Generation && st.ObservedGeneration > 0 &&
			st.UpdatedNumberScheduled == st.DesiredNumberScheduled &&
			st.NumberAvailable == st.DesiredNumberScheduled {
			l.done(revision)
		}
	case *appsv1.ReplicaSet:
		if l := v.owner(s); l != nil {
			revision := number(o.Annotations[deploymentRevision])
			l.began(
				s,
				revision,
				fmt.Sprintf("%s/%s/%d/%s", v.cluster, l.UID, revision, o.Labels[appsv1.DefaultDeploymentUniqueLabelKey]),
			)
			if o.Annotations[deploymentHistory] == "" {
				l.born(revision, o)
			}
		}
	case *appsv1.ControllerRevision:
		if l := v.owner(s); l != nil && metav1.GetControllerOf(o).Kind == "StatefulSet" {
			again := l.bearers[string(o.UID)]
			l.bearers[string(o.UID)] = true
			l.newest[o.Name] = int(o.Revision)
			l.began(s, int(o.Revision), fmt.Sprintf("%s/%s/%s/%d", v.cluster, l.UID, o.Name, o.Revision))
			if !again {
				l.born(int(o.Revision), o)
			}
		}
	}
}

// life of the workload that is seen, begun with its first version.
func (v *viewer) life(s Sight, kind string) *life {
	uid := string(s.Object.GetUID())
	l := v.lives[uid]
	if l == nil {
		l = &life{
			TrueWorkload: TrueWorkload{
				UID:     uid,
				Name:    s.Object.GetNamespace() + "/" + kind + "/" + s.Object.GetName(),
				Created: s.At,
			},
			newest:  map[string]int{},
			bearers: map[string]bool{},
		}
		v.lives[uid], v.order = l, append(v.order, l)
	}
	if s.Deleted {
		l.Deleted = s.At
	}
	for _, m := range s.Object.GetManagedFields() {
		if m.Time != nil && m.FieldsV1 != nil && bytes.Contains(m.FieldsV1.GetRawBytes(), []byte(`"f:template"`)) {
			l.Written = append(l.Written, m.Time.Time)
		}
	}
	return l
}

// owner of what is seen; nil when there is none, or it is gone: a controller that has not heard of
// it may go on for a moment.
func (v *viewer) owner(s Sight) *life {
	owner := metav1.GetControllerOf(s.Object)
	if owner == nil || s.Deleted {
		return nil
	}
	if l := v.lives[string(owner.UID)]; l != nil && l.Deleted.IsZero() {
		return l
	}
	return nil
}

func (l *life) began(s Sight, revision int, id string) {
	if n := len(l.Rollouts); revision > 0 && !s.Deleted && (n == 0 || revision > l.Rollouts[n-1].Revision) {
		l.Rollouts = append(l.Rollouts, TrueRollout{ID: id, Revision: revision, Began: s.At})
	}
}

// born is the object that bears a revision, made for it.
func (l *life) born(revision int, o metav1.Object) {
	if n := len(l.Rollouts); n > 0 && l.Rollouts[n-1].Revision == revision && l.Rollouts[n-1].Born.IsZero() {
		l.Rollouts[n-1].Born = o.GetCreationTimestamp().Time
	}
}

// done is that of the newest only: what is said of an older one was said before.
func (l *life) done(revision int, ends ...time.Time) {
	if n := len(l.Rollouts); n > 0 && l.Rollouts[n-1].Revision == revision {
		l.Rollouts[n-1].Done = true
		l.Rollouts[n-1].Ends = append(l.Rollouts[n-1].Ends, ends...)
	}
}

// progressed is when a Deployment's controller last said of its progress something new.
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
