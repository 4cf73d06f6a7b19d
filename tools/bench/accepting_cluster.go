package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"lockstep.internal/services/watcher/kube/kubetest"
)

// acceptingCluster is a stand-in for an API server: it accepts every object that a dispatcher
// applies, and records when each revision of a workspace first arrives.
type acceptingCluster struct {
	mu      sync.Mutex
	version int
	first   map[string]arrival // by workspace
	changed chan struct{}      // closed and replaced after each arrival
}

type arrival struct {
	revision int64
	at       time.Time
}

// inventoryPrefix begins the names of the dispatcher's inventory objects. It writes one before it
// applies.
const inventoryPrefix = "workspace-"

func newAcceptingCluster(server *kubetest.Server) *acceptingCluster {
	c := &acceptingCluster{first: map[string]arrival{}, changed: make(chan struct{})}
	server.Handle(c.serve)
	return c
}

// applied waits for a revision of a workspace, or a later one, and returns the time of its arrival.
func (c *acceptingCluster) applied(ctx context.Context, workspace string, revision int64) (time.Time, error) {
	for {
		c.mu.Lock()
		first, changed := c.first[workspace], c.changed
		c.mu.Unlock()
		if first.revision >= revision {
			return first.at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for revision %d of workspace %s: %w", revision, workspace, context.Cause(ctx))
		}
	}
}

// serve handles the requests that the test server does not know. It returns false for the others.
func (c *acceptingCluster) serve(w http.ResponseWriter, r *http.Request) bool {
	at := time.Now()
	collection := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	query := r.URL.Query()
	switch {
	case r.URL.Path == "/readyz":
		w.WriteHeader(http.StatusOK)
	case r.Method == http.MethodPatch:
		c.echo(w, r, "meta.k8s.io/v1", "PartialObjectMetadata", at)
	case strings.Contains(r.URL.Path, "/configmaps") && r.Method != http.MethodGet && r.Method != http.MethodDelete:
		c.echo(w, r, "v1", "ConfigMap", at)
	case r.Method == http.MethodGet && collection == "configmaps":
		writeEmptyList(w, "v1", "ConfigMapList")
	case r.Method == http.MethodGet && collection == "namespaces" && query.Get("watch") == "":
		writeEmptyList(w, "meta.k8s.io/v1", "PartialObjectMetadataList")
	case r.Method == http.MethodGet && collection == "namespaces" && query.Get("sendInitialEvents") == "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		if flusher, can := w.(http.Flusher); can {
			flusher.Flush()
		}
		<-r.Context().Done()
	default:
		return false
	}
	return true
}

func writeEmptyList(w http.ResponseWriter, apiVersion, kind string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1"},"items":[]}`, apiVersion, kind)
}

// echo accepts an object and returns it with a new version.
func (c *acceptingCluster) echo(w http.ResponseWriter, r *http.Request, apiVersion, kind string, at time.Time) {
	object, err := decodeObject(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	meta, _ := object["metadata"].(map[string]any)
	if meta == nil {
		http.Error(w, "metadata is missing", http.StatusBadRequest)
		return
	}
	name, _ := meta["name"].(string)
	if workspace, isInventory := strings.CutPrefix(name, inventoryPrefix); isInventory && kind == "ConfigMap" {
		c.record(workspace, object, at)
	}
	c.mu.Lock()
	c.version++
	meta["resourceVersion"], meta["generation"] = strconv.Itoa(c.version), 1
	c.mu.Unlock()
	if meta["uid"] == nil {
		meta["uid"] = "uid-" + name
	}
	w.Header().Set("Content-Type", "application/json")
	raw, err := json.Marshal(map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": meta, "data": object["data"],
	})
	if err != nil {
		raw = []byte(err.Error())
	}
	_, _ = w.Write(raw)
}

// decodeObject reads an object in JSON, or in protobuf from a typed client.
func decodeObject(r *http.Request) (map[string]any, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	if r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf {
		typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode the object: %w", err)
		}
		if raw, err = json.Marshal(typed); err != nil {
			return nil, fmt.Errorf("encode the object: %w", err)
		}
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("decode the object: %w", err)
	}
	return object, nil
}

// record records the first inventory with a revision.
func (c *acceptingCluster) record(workspace string, inventory map[string]any, at time.Time) {
	data, _ := inventory["data"].(map[string]any)
	text, _ := data["desired_revision"].(string)
	revision, err := strconv.ParseInt(text, 10, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || revision <= c.first[workspace].revision {
		return
	}
	c.first[workspace] = arrival{revision: revision, at: at}
	close(c.changed)
	c.changed = make(chan struct{})
}
