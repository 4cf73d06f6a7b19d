package nats

import (
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// sound says that the values of an observation, whose JSON is exactly what Go makes of it, are such that its schema allows them. It may say no to some that
// are allowed all the same: the schema itself is asked then.
type sound func() bool

func soundMeta(m *events.ObjectMeta) bool {
	return m.ClusterUID != "" && m.Name != "" && m.UID != "" && domain.ValidVersion(m.ResourceVersion) &&
		(m.Verb == events.VerbUpserted || m.Verb == events.VerbDeleted) &&
		(m.UpdateType == events.UpdateTypePartial || m.UpdateType == events.UpdateTypeFull)
}

func soundConditions(conditions []events.Condition) bool {
	for i := range conditions {
		if conditions[i].Type == "" || conditions[i].Status == "" {
			return false
		}
	}
	return true
}

func soundDeployment(d *events.ObservedDeployment) bool {
	for _, count := range []int{
		d.Generation, d.ObservedGeneration, d.Replicas, d.UpdatedReplicas, d.ReadyReplicas, d.AvailableReplicas, d.UnavailableReplicas, d.Revision,
	} {
		if count < 0 {
			return false
		}
	}
	for _, count := range []*int{d.SpecReplicas, d.TerminatingReplicas} {
		if count != nil && *count < 0 {
			return false
		}
	}
	return soundMeta(&d.Object) && soundConditions(d.Conditions)
}

func soundReplicaSet(d *events.ObservedReplicaSet) bool {
	return soundMeta(&d.Object) && d.Deployment != "" && d.Revision >= 0
}

func soundPod(d *events.ObservedPod) bool {
	for i := range d.Containers {
		c := &d.Containers[i]
		known := c.State == events.ContainerStatusWaiting || c.State == events.ContainerStatusRunning || c.State == events.ContainerStatusTerminated
		if !known || c.Name == "" || c.RestartCount < 0 || c.ExitCode < 0 {
			return false
		}
	}
	return soundMeta(&d.Object) && d.Deployment != "" && d.Phase != "" && soundConditions(d.Conditions)
}
