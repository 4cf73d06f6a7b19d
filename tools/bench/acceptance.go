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

// acceptance is what a stand-in for an API server needs for a dispatcher: it accepts whatever is applied, and knows when which revision of which workspace was
// first written about.
type acceptance struct {
	mu      sync.Mutex
	version int
	seen    map[string]sighting // by workspace
	changed chan struct{}       // closed and replaced at each
}

// sighting is a revision that began to be applied.
type sighting struct {
	revision int64
	at       time.Time
}

const inventoryPrefix = "workspace-"

// accept has the server accept everything from now on.
func accept(server *kubetest.Server) *acceptance {
	a := &acceptance{seen: map[string]sighting{}, changed: make(chan struct{})}
	server.Handle(a.serve)
	return a
}

// reached waits until a workspace's revision, or a later one, has been written about, and returns when that was.
func (a *acceptance) reached(ctx context.Context, workspace string, revision int64) (time.Time, error) {
	for {
		a.mu.Lock()
		seen, changed := a.seen[workspace], a.changed
		a.mu.Unlock()
		if seen.revision >= revision {
			return seen.at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for revision %d of workspace %s: %w", revision, workspace, context.Cause(ctx))
		}
	}
}

// serve answers what the stand-in itself does not know; false for the rest.
func (a *acceptance) serve(w http.ResponseWriter, r *http.Request) bool {
	at := time.Now()
	collection := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	query := r.URL.Query()
	switch {
	case r.URL.Path == "/readyz":
		w.WriteHeader(http.StatusOK)
	case r.Method == http.MethodPatch:
		a.echo(w, r, "meta.k8s.io/v1", "PartialObjectMetadata", at)
	case strings.Contains(r.URL.Path, "/configmaps") && r.Method != http.MethodGet && r.Method != http.MethodDelete:
		a.echo(w, r, "v1", "ConfigMap", at)
	case r.Method == http.MethodGet && collection == "configmaps":
		empty(w, "v1", "ConfigMapList")
	case r.Method == http.MethodGet && collection == "namespaces" && query.Get("watch") == "":
		empty(w, "meta.k8s.io/v1", "PartialObjectMetadataList")
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

func empty(w http.ResponseWriter, apiVersion, kind string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1"},"items":[]}`, apiVersion, kind)
}

// echo accepts an object as it comes.
func (a *acceptance) echo(w http.ResponseWriter, r *http.Request, apiVersion, kind string, at time.Time) {
	object, err := objectOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	meta, _ := object["metadata"].(map[string]any)
	if meta == nil {
		http.Error(w, "no metadata", http.StatusBadRequest)
		return
	}
	name, _ := meta["name"].(string)
	if workspace, isInventory := strings.CutPrefix(name, inventoryPrefix); isInventory && kind == "ConfigMap" {
		a.see(workspace, object, at)
	}
	a.mu.Lock()
	a.version++
	meta["resourceVersion"], meta["generation"] = strconv.Itoa(a.version), 1
	a.mu.Unlock()
	if meta["uid"] == nil {
		meta["uid"] = "uid-" + name
	}
	w.Header().Set("Content-Type", "application/json")
	raw, err := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": meta, "data": object["data"]})
	if err != nil {
		raw = []byte(err.Error())
	}
	_, _ = w.Write(raw)
}

// objectOf reads an object in JSON, or in protobuf as clients of a typed object send it.
func objectOf(r *http.Request) (map[string]any, error) {
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

// see notes the first writing about a revision: the dispatcher's claim, with which it begins to apply.
func (a *acceptance) see(workspace string, inventory map[string]any, at time.Time) {
	data, _ := inventory["data"].(map[string]any)
	text, _ := data["desired_revision"].(string)
	revision, err := strconv.ParseInt(text, 10, 64)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || revision <= a.seen[workspace].revision {
		return
	}
	a.seen[workspace] = sighting{revision: revision, at: at}
	close(a.changed)
	a.changed = make(chan struct{})
}
