package history

import (
	"lockstep.internal/schemas/gen/events"
)

// Row is a workspace in the database.
type Row struct {
	ID, Name, Namespace  string
	DesiredState, Actual string
	Desired, Applied     int // revisions
	Image                string
}

// Deployment is a Deployment in the cluster.
type Deployment struct {
	Namespace, Name string
	Workspace       string // of its label
	Revision        int    // of its annotation
	Replicas        int
	Image           string
}

// Cluster holds the objects of workspaces in a cluster. Keys of the maps are names, values are the
// ids of the labelled workspaces.
type Cluster struct {
	Deployments []Deployment
	Namespaces  map[string]string
	Volumes     map[string]string // by namespace/name
	Inventories map[string]string
}

// Converged checks that desired, sent and actual state are equal: every row is settled, DESIRED
// holds its revision, and the cluster has its Deployment with that revision, replicas and image. A
// terminated workspace has no objects, and the cluster has no other objects.
func Converged(rows []Row, desired []Record, cluster Cluster) Findings {
	var f Findings
	sent := map[string]events.DesiredWorkspace{}
	each(&f, desired, events.TypeDesiredWorkspace, func(_ Record, e events.DesiredWorkspace) { sent[e.WorkspaceID] = e })
	deployments := map[string][]Deployment{}
	for _, d := range cluster.Deployments {
		deployments[d.Workspace] = append(deployments[d.Workspace], d)
	}
	living := map[string]bool{}
	for _, row := range rows {
		if message, found := sent[row.ID]; found && message.DesiredRevision != row.Desired {
			f.addf("workspace %s is at revision %d, and DESIRED has %d", row.Name, row.Desired, message.DesiredRevision)
		} else if !found && row.DesiredState != string(events.DesiredStateTerminated) {
			f.addf("workspace %s is not in DESIRED", row.Name)
		}
		if row.Applied != row.Desired {
			f.addf("workspace %s: applied revision is %d, want %d", row.Name, row.Applied, row.Desired)
		}
		switch {
		case row.DesiredState == string(events.DesiredStateTerminated) && row.Actual == string(events.ActualStateTerminated):
		case row.DesiredState == string(events.DesiredStateTerminated):
			f.addf("workspace %s: actual state is %s, want terminated", row.Name, row.Actual)
		default:
			living[row.ID] = true
			row.compare(&f, deployments[row.ID])
		}
	}
	cluster.strays(&f, living)
	return f
}

// compare checks the Deployment of a workspace.
func (row Row) compare(f *Findings, found []Deployment) {
	replicas := map[string]int{string(events.DesiredStateRunning): 1, string(events.DesiredStateStopped): 0}
	want, settled := replicas[row.DesiredState]
	if !settled {
		f.addf("workspace %s: desired state %s is not settled", row.Name, row.DesiredState)
		return
	}
	wanted := Deployment{
		Namespace: row.Namespace,
		Name:      row.Name,
		Workspace: row.ID,
		Revision:  row.Desired,
		Replicas:  want,
		Image:     row.Image,
	}
	if len(found) != 1 || found[0] != wanted {
		f.addf("workspace %s: Deployment is %+v, want %+v", row.Name, found, wanted)
	}
}

// strays finds objects that belong to no existing workspace.
func (c Cluster) strays(f *Findings, living map[string]bool) {
	for _, d := range c.Deployments {
		if !living[d.Workspace] {
			f.addf("Deployment %s/%s belongs to no existing workspace", d.Namespace, d.Name)
		}
	}
	for what, named := range map[string]map[string]string{
		"namespace": c.Namespaces, "volume": c.Volumes,
		"inventory": c.Inventories,
	} {
		for name, workspace := range named {
			if !living[workspace] {
				f.addf("%s %s belongs to no existing workspace", what, name)
			}
		}
	}
}

// Object is an observed object.
type Object struct{ Kind, Namespace, Name, UID, Version string }

// Mirrored checks that the objects in the database are those in the cluster.
func Mirrored(stored, actual []Object) Findings {
	var f Findings
	type name struct{ kind, namespace, name string }
	known := map[name]Object{}
	for _, o := range stored {
		known[name{o.Kind, o.Namespace, o.Name}] = o
	}
	for _, o := range actual {
		key := name{o.Kind, o.Namespace, o.Name}
		if was, found := known[key]; !found {
			f.addf("%s %s/%s is in the cluster and not in the database", o.Kind, o.Namespace, o.Name)
		} else if was != o {
			f.addf("%s %s/%s is %+v in the cluster and %+v in the database", o.Kind, o.Namespace, o.Name, o, was)
		}
		delete(known, key)
	}
	for _, o := range known {
		f.addf("%s %s/%s is in the database and not in the cluster", o.Kind, o.Namespace, o.Name)
	}
	return f
}

// Volume is a claim that the cluster had at some time.
type Volume struct{ Namespace, Name, UID, Workspace string }

// Kept checks that the volume of no workspace was replaced.
func Kept(seen []Volume) Findings {
	var f Findings
	first := map[string]Volume{}
	for _, v := range seen {
		was, found := first[v.Workspace]
		if !found {
			first[v.Workspace] = v
		} else if was != v {
			f.addf("volume %s/%s of workspace %s was created again: %s after %s",
				v.Namespace, v.Name, v.Workspace, v.UID, was.UID)
		}
	}
	return f
}
