package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/history"
)

// Recording is everything that a run has recorded, each kind in its order.
type Recording struct {
	Run      Run
	Faults   []Injected
	Calls    []Call
	Desired  []Desired
	Relayed  []Relayed
	Secrets  []string
	Versions []history.ObjectVersion
	Messages []Message
}

// Run describes the run.
type Run struct {
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration"`
	// Cluster is the UID of the cluster, Agent the id of the agent with the load.
	Cluster string `json:"cluster"`
	Agent   int64  `json:"agent"`
	// MaxWorkspaces is the quota of each user.
	MaxWorkspaces int `json:"max_workspaces"`
}

// Injected is a fault that was injected.
type Injected struct {
	Fault

	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// Call is a change of a workspace by a user, repeated until it was answered.
type Call struct {
	history.Call

	User string `json:"user"`
	// Created and Terminated report that the call created or terminated a workspace, OverQuota that its creation was
	// refused by the quota.
	Created    bool `json:"created,omitempty"`
	Terminated bool `json:"terminated,omitempty"`
	OverQuota  bool `json:"over_quota,omitempty"`
}

// Desired is a workspace as its user has last requested it, by the answers to the user.
type Desired struct {
	Workspace  string `json:"workspace"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Terminated bool   `json:"terminated,omitempty"`
	Replicas   int32  `json:"replicas"`
	Image      string `json:"image"`
	Number     string `json:"number"` // of the variable NUMBER
	Port       int32  `json:"port"`
	// State is its last actual state.
	State events.ActualState `json:"state"`
}

// Relayed is a request through a relay that was answered.
type Relayed struct {
	Agent    string `json:"agent"`
	Question string `json:"question"`
	Answer   string `json:"answer"`
}

// Message is a message of a stream.
type Message struct {
	history.Record

	Family string `json:"family"`
}

// version is an object's version in a recording.
type version struct {
	At      time.Time       `json:"at"`
	Deleted bool            `json:"deleted,omitempty"`
	Kind    string          `json:"kind"`
	Object  json.RawMessage `json:"object"`
}

// entry is a line of a recording. One field is set.
type entry struct {
	Run     *Run      `json:"run,omitempty"`
	Fault   *Injected `json:"fault,omitempty"`
	Call    *Call     `json:"call,omitempty"`
	Desired *Desired  `json:"desired,omitempty"`
	Relayed *Relayed  `json:"relayed,omitempty"`
	Hidden  string    `json:"hidden,omitempty"` // the value of a secret
	Version *version  `json:"version,omitempty"`
	Message *Message  `json:"message,omitempty"`
}

// newObject returns an empty object for each recorded kind.
func newObject(kind string) (metav1.Object, error) {
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{}, nil
	case "ReplicaSet":
		return &appsv1.ReplicaSet{}, nil
	case "StatefulSet":
		return &appsv1.StatefulSet{}, nil
	case "DaemonSet":
		return &appsv1.DaemonSet{}, nil
	case "ControllerRevision":
		return &appsv1.ControllerRevision{}, nil
	case "Lease":
		return &coordinationv1.Lease{}, nil
	case "PersistentVolumeClaim":
		return &corev1.PersistentVolumeClaim{}, nil
	default:
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
}

// recorder writes a recording. It is safe for concurrent use.
type recorder struct {
	mu   sync.Mutex
	file *os.File
	out  *bufio.Writer
	err  error // the first
}

func newRecorder(path string) (*recorder, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the recording: %w", err)
	}
	return &recorder{file: file, out: bufio.NewWriter(file)}, nil
}

// write appends an entry. close returns the first error.
func (r *recorder) write(e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = json.NewEncoder(r.out).Encode(e)
	}
}

func (r *recorder) object(at time.Time, deleted bool, kind string, object metav1.Object) {
	raw, err := json.Marshal(object)
	r.mu.Lock()
	r.err = errors.Join(r.err, err)
	r.mu.Unlock()
	r.write(entry{Version: &version{At: at, Deleted: deleted, Kind: kind, Object: raw}})
}

// read returns what was recorded until now.
func (r *recorder) read() (Recording, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.err, r.out.Flush()); err != nil {
		return Recording{}, fmt.Errorf("write the recording: %w", err)
	}
	return ReadRecording(r.file.Name())
}

func (r *recorder) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.err, r.out.Flush(), r.file.Close())
}

// ReadRecording reads a recording.
func ReadRecording(path string) (Recording, error) {
	file, err := os.Open(path)
	if err != nil {
		return Recording{}, fmt.Errorf("open the recording: %w", err)
	}
	defer file.Close() //nolint:errcheck // read only
	var all Recording
	lines := json.NewDecoder(bufio.NewReader(file))
	for {
		var e entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, fmt.Errorf("read the recording: %w", err)
		}
		if err := all.add(e); err != nil {
			return all, fmt.Errorf("read the recording: %w", err)
		}
	}
}

func (r *Recording) add(e entry) error {
	switch {
	case e.Run != nil:
		r.Run = *e.Run
	case e.Fault != nil:
		r.Faults = append(r.Faults, *e.Fault)
	case e.Call != nil:
		r.Calls = append(r.Calls, *e.Call)
	case e.Desired != nil:
		r.Desired = append(r.Desired, *e.Desired)
	case e.Relayed != nil:
		r.Relayed = append(r.Relayed, *e.Relayed)
	case e.Hidden != "":
		r.Secrets = append(r.Secrets, e.Hidden)
	case e.Message != nil:
		r.Messages = append(r.Messages, *e.Message)
	case e.Version != nil:
		object, err := newObject(e.Version.Kind)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(e.Version.Object, object); err != nil {
			return fmt.Errorf("a version of a %s: %w", e.Version.Kind, err)
		}
		r.Versions = append(r.Versions, history.ObjectVersion{At: e.Version.At, Deleted: e.Version.Deleted, Object: object})
	}
	return nil
}
