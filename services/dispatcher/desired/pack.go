package desired

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
)

// packed is the JSON form of an applied workspace. Compressed, it saves memory between two repairs.
type packed struct {
	payload

	Size int `json:"size"`
}

// Pack encodes a workspace as compressed JSON.
func Pack(w Workspace) ([]byte, error) {
	p := packed{Size: w.Size, payload: payload{
		WorkspaceID: w.ID, Name: w.Name, Namespace: w.Namespace, DesiredRevision: w.Revision, Target: w.Target,
		Secrets: w.Secrets,
	}}
	for _, object := range w.Objects {
		manifest, err := json.Marshal(object.Manifest)
		if err != nil {
			return nil, fmt.Errorf("pack workspace %s: %w", w.ID, err)
		}
		p.Manifests = append(p.Manifests, manifest)
	}
	var out bytes.Buffer
	writer, err := flate.NewWriter(&out, flate.BestSpeed)
	if err == nil {
		err = json.NewEncoder(writer).Encode(p)
	}
	if err == nil {
		err = writer.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("pack workspace %s: %w", w.ID, err)
	}
	return bytes.Clone(out.Bytes()), nil
}

// Unpack decodes the result of [Pack].
func Unpack(data []byte) (Workspace, error) {
	var p packed
	raw, err := io.ReadAll(flate.NewReader(bytes.NewReader(data)))
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil {
		return Workspace{}, fmt.Errorf("unpack a workspace: %w", err)
	}
	w := Workspace{ID: p.WorkspaceID, Size: p.Size}
	if err := p.fill(&w); err != nil {
		return Workspace{}, fmt.Errorf("unpack workspace %s: %w", p.WorkspaceID, err)
	}
	return w, nil
}
