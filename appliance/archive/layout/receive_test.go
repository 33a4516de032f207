package layout_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/frame"
	"signalbox/appliance/archive/layout"
	"signalbox/appliance/archive/pathrule"
)

func TestReceive(t *testing.T) {
	r, job := staged(t)
	got, err := layout.Receive(t.Context(), r, jobID, 3, expect())
	must(t, err)
	raw, err := os.ReadFile(filepath.Join(job, layout.ManifestFile))
	must(t, err)
	if got.ManifestSHA256 != sum(string(raw)) || !proto.Equal(got.Manifest, manifest()) || got.Marker.ManifestBytes != uint64(len(raw)) || got.Extras.Count != 0 {
		t.Errorf("%+v", got)
	}
	exp := expect()
	exp.ManifestSHA256 = got.ManifestSHA256
	if _, err := layout.Receive(t.Context(), r, jobID, 3, exp); err != nil {
		t.Error(err)
	}
	exp.ManifestSHA256 = sum("another")
	_, err = layout.Receive(t.Context(), r, jobID, 3, exp)
	mustCode(t, "another digest in the evidence", err, manifestInvalid)
}

// rewrite changes a file of a job directory.
func rewrite(t *testing.T, name string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, change(b), 0o600))
}

func TestReceiveIgnoresWhatIsNotComplete(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, job string){
		"no directory": func(t *testing.T, job string) { must(t, os.RemoveAll(job)) },
		"no marker":    func(t *testing.T, job string) { must(t, os.Remove(filepath.Join(job, "ready.json"))) },
		"no manifest":  func(t *testing.T, job string) { must(t, os.Remove(filepath.Join(job, "manifest.json"))) },
		"marker is a link": func(t *testing.T, job string) {
			must(t, os.Rename(filepath.Join(job, "ready.json"), filepath.Join(job, "elsewhere")))
			must(t, os.Symlink("elsewhere", filepath.Join(job, "ready.json")))
		},
		"manifest is a link": func(t *testing.T, job string) {
			must(t, os.Rename(filepath.Join(job, "manifest.json"), filepath.Join(job, "elsewhere")))
			must(t, os.Symlink("elsewhere", filepath.Join(job, "manifest.json")))
		},
		"marker has two names": func(t *testing.T, job string) {
			must(t, os.Link(filepath.Join(job, "ready.json"), filepath.Join(job, "second")))
		},
		"manifest has two names": func(t *testing.T, job string) {
			must(t, os.Link(filepath.Join(job, "manifest.json"), filepath.Join(job, "second")))
		},
		"marker is a directory": func(t *testing.T, job string) {
			must(t, os.Remove(filepath.Join(job, "ready.json")))
			must(t, os.Mkdir(filepath.Join(job, "ready.json"), 0o700))
		},
		"payload missing": func(t *testing.T, job string) { must(t, os.Remove(filepath.Join(job, "payload/00000005"))) },
		"payload short":   func(t *testing.T, job string) { must(t, os.Truncate(filepath.Join(job, "payload/00000005"), 1)) },
		"payload long":    func(t *testing.T, job string) { must(t, os.Truncate(filepath.Join(job, "payload/00000005"), 100)) },
		"no payload":      func(t *testing.T, job string) { must(t, os.RemoveAll(filepath.Join(job, "payload"))) },
		"artifact short":  func(t *testing.T, job string) { must(t, os.Truncate(filepath.Join(job, "aux/metainfo"), 1)) },
	} {
		r, job := staged(t)
		spoil(t, job)
		_, err := layout.Receive(t.Context(), r, jobID, 3, expect())
		var wait *layout.NotReady
		if !errors.As(err, &wait) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if payload := strings.HasPrefix(name, "payload") || name == "no payload" || name == "artifact short"; payload != (wait.Incomplete > 0) || payload != (wait.First != "") {
			t.Errorf("%s: %+v", name, wait)
		}
	}
	r, job := staged(t)
	must(t, os.Truncate(filepath.Join(job, "payload/00000000"), 6))
	got, err := layout.Receive(t.Context(), r, jobID, 3, expect())
	var wait *layout.NotReady
	if !errors.As(err, &wait) || wait.Incomplete != 1 || wait.First != "payload/00000000" || wait.Have != 10 || wait.Want != 14 || got.Manifest == nil {
		t.Errorf("%+v, %v", wait, err)
	}
}

func TestReceiveRefusesWhatIsWrong(t *testing.T) {
	const unsafe = pb.ErrorCode_ERROR_CODE_PATH_UNSAFE
	marker := func(change func([]byte) []byte) func(t *testing.T, job string) {
		return func(t *testing.T, job string) { rewrite(t, filepath.Join(job, "ready.json"), change) }
	}
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			out := bytes.Replace(b, []byte(old), []byte(new), 1)
			if bytes.Equal(out, b) {
				panic("nothing replaced in " + string(b))
			}
			return out
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, job string)
		code  pb.ErrorCode
		text  string
	}{
		"manifest altered": {func(t *testing.T, job string) {
			rewrite(t, filepath.Join(job, "manifest.json"), replace("t/b", "t/c"))
		}, manifestInvalid, "SHA-256"},
		"manifest longer": {func(t *testing.T, job string) {
			rewrite(t, filepath.Join(job, "manifest.json"), func(b []byte) []byte { return append(b, ' ') })
		}, manifestInvalid, "the marker says"},
		"manifest no JSON, unknown to the marker": {func(t *testing.T, job string) { // the digest is compared before anything is parsed
			rewrite(t, filepath.Join(job, "manifest.json"), func(b []byte) []byte { return bytes.Repeat([]byte("{"), len(b)) })
		}, manifestInvalid, "SHA-256"},
		"marker for another job": {marker(replace(jobID, otherJob)), manifestInvalid, "job_id"},
		"marker for another attempt": {marker(func(b []byte) []byte {
			return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte(`:3,`), []byte(`:4,`)), []byte(`: 3,`), []byte(`:4,`))
		}), manifestInvalid, "attempt"},
		"marker with unknown field": {marker(replace("{", `{"unknown":1,`)), manifestInvalid, ""},
		"marker with a key twice":   {marker(replace("{", `{"format":1,`)), manifestInvalid, ""},
		"marker too large":          {marker(func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), layout.MaxMarker)...) }), manifestInvalid, "larger than"},
		"marker empty":              {marker(func([]byte) []byte { return nil }), manifestInvalid, ""},
		"directory is a link": {func(t *testing.T, job string) {
			must(t, os.Rename(job, job+"x"))
			must(t, os.Symlink(filepath.Base(job)+"x", job))
		}, unsafe, "symbolic link"},
		"directory is a file": {func(t *testing.T, job string) {
			must(t, os.RemoveAll(job))
			must(t, os.WriteFile(job, nil, 0o600))
		}, beneath.PathConflict, ""},
		"payload is a link": {func(t *testing.T, job string) {
			must(t, os.Remove(filepath.Join(job, "payload/00000005")))
			must(t, os.Symlink("00000000", filepath.Join(job, "payload/00000005")))
		}, unsafe, "payload/00000005"},
		"payload directory is a link": {func(t *testing.T, job string) {
			must(t, os.Rename(filepath.Join(job, "payload"), filepath.Join(job, "other")))
			must(t, os.Symlink("other", filepath.Join(job, "payload")))
		}, unsafe, ""},
		"torrent altered": {func(t *testing.T, job string) {
			rewrite(t, filepath.Join(job, "aux/metainfo"), replace("xyz", "abc"))
		}, integrity, "aux/metainfo"},
	} {
		r, job := staged(t)
		c.spoil(t, job)
		_, err := layout.Receive(t.Context(), r, jobID, 3, expect())
		mustCode(t, name, err, c.code)
		if err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v does not say %q", name, err, c.text)
		}
	}
}

func TestTheTorrentMustBeTheOneOfTheJob(t *testing.T) {
	other := "d4:infod4:name1:xee"
	for name, c := range map[string]struct {
		content string
		change  func(m *pb.TransferManifest)
		text    string
	}{
		"another torrent": {other, func(*pb.TransferManifest) {}, "info dictionary has SHA-256"},
		"another v1 torrent": {other, func(m *pb.TransferManifest) {
			m.Source.Resource.Identity = &pb.ResourceIdentity{InfohashV1: strings.Repeat("a", 40)}
			m.Fingerprints.InfoSha256 = sum("d4:name1:xe")
		}, "the job is about"},
		"no torrent": {"d1:ai1ee", func(*pb.TransferManifest) {}, "no torrent file"},
		"garbage":    {"garbage", func(*pb.TransferManifest) {}, "no torrent file"},
	} {
		r := beneathtest.Open(t, t.TempDir())
		put(t, r)
		must(t, r.Unlink(layout.JobDir(jobID, 3)+"/aux/metainfo"))
		beneathtest.Write(t, r, layout.JobDir(jobID, 3)+"/aux/metainfo", []byte(c.content))
		m := manifest()
		m.Artifacts[0].Bytes, m.Artifacts[0].Sha256 = uint64(len(c.content)), sum(c.content)
		c.change(m)
		seal(t, r, m)
		_, err := layout.Receive(t.Context(), r, jobID, 3, layout.Expect{})
		mustCode(t, name, err, manifestInvalid)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExtraNamesAreIgnoredAndReported(t *testing.T) {
	r, job := staged(t)
	for _, name := range []string{"payload/00000000.sync-conflict-20300102-030405-ABCDEFG", "payload/.00000005.Xy12zZ", "payload/00000001",
		".syncthing.manifest.json.tmp", "manifest.json.tmp-0123456789abcdef", "notes.txt", "aux/partfile"} {
		must(t, os.WriteFile(filepath.Join(job, name), nil, 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(job, "deep/er"), 0o700))
	got, err := layout.Receive(t.Context(), r, jobID, 3, expect())
	must(t, err)
	found := map[string]bool{}
	for _, x := range got.Extras.First {
		found[x.Name] = x.Temporary
	}
	want := map[string]bool{"payload/00000000.sync-conflict-20300102-030405-ABCDEFG": true, "payload/.00000005.Xy12zZ": true, "payload/00000001": false,
		".syncthing.manifest.json.tmp": true, "manifest.json.tmp-0123456789abcdef": true, "notes.txt": false, "aux/partfile": false, "deep": false}
	if got.Extras.Count != len(want) || len(found) != len(want) {
		t.Errorf("%+v", got.Extras)
	}
	for name, temporary := range want {
		if is, ok := found[name]; !ok || is != temporary {
			t.Errorf("%s: reported %v, temporary %v", name, ok, is)
		}
	}
	if len(listing(t, filepath.Join(job, "payload"))) != 5 {
		t.Error("something was removed")
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		jobID + "-1": true, jobID + "-4294967295": true, jobID + "-0": false, jobID + "-01": false, jobID + "-": false, jobID: false,
		jobID + "-4294967296": false, jobID + "-+1": false, strings.ToUpper(jobID) + "-1": false, "x-1": false, jobID + "-1-1": false, "": false,
	} {
		id, attempt, got := layout.ParseJobDir(name)
		if got != ok || ok && layout.JobDir(id, attempt) != "jobs/"+name {
			t.Errorf("%q: %q, %d, %v", name, id, attempt, got)
		}
	}
	for name, want := range map[string]bool{
		"ready.json.tmp-0123456789abcdef": true, ".ready.json.a1B2c3": true, ".~tmp~": true, ".rsync-partial": true, ".syncthing.x.tmp": true,
		"~syncthing~x.tmp": true, ".stfolder": true, ".stversions": true, ".stignore": true, "x.sync-conflict-20300102-030405-ABCDEFG.bin": true,
		"00000000": false, "manifest.json": false, "ready.json": false, "metainfo": false, ".hidden": false, "tmp": false, "x.tmp-1": false,
	} {
		if layout.IsTemporary(name) != want {
			t.Errorf("%q", name)
		}
	}
}

func TestValidateManifest(t *testing.T) {
	if err := layout.ValidateManifest(manifest(), expect()); err != nil {
		t.Fatal(err)
	}
	const transfer, present = pb.DeltaAction_DELTA_ACTION_TRANSFER, pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET
	for name, c := range map[string]struct {
		change func(m *pb.TransferManifest, e *layout.Expect)
		code   pb.ErrorCode // MANIFEST_INVALID if unset
		text   string
	}{
		"job of the directory":     {func(m *pb.TransferManifest, e *layout.Expect) { e.JobID = otherJob }, 0, "job_id"},
		"attempt of the directory": {func(m *pb.TransferManifest, e *layout.Expect) { e.Attempt = 4 }, 0, "attempt"},
		"receiver":                 {func(m *pb.TransferManifest, e *layout.Expect) { e.ClientID = sourceID }, 0, "target.client_id"},
		"route kind":               {func(m *pb.TransferManifest, e *layout.Expect) { e.RouteKind = pb.RouteKind_ROUTE_KIND_SYNCTHING }, 0, "route.kind"},
		"definition":               {func(m *pb.TransferManifest, e *layout.Expect) { e.Definition.ParentJobId = otherJob }, 0, "definition_sha256"},
		"job":                      {func(m *pb.TransferManifest, e *layout.Expect) { m.JobId = otherJob }, 0, "job_id"},
		"source":                   {func(m *pb.TransferManifest, e *layout.Expect) { m.Source.ClientId = routeID }, 0, "source"},
		"resource":                 {func(m *pb.TransferManifest, e *layout.Expect) { m.Source.Resource.ResourceId = "other" }, 0, "source"},
		"revision":                 {func(m *pb.TransferManifest, e *layout.Expect) { m.Source.ContentRevision = sum("x") }, 0, "content_revision"},
		"target":                   {func(m *pb.TransferManifest, e *layout.Expect) { m.Target.ClientId, e.ClientID = routeID, "" }, 0, "target.client_id"},
		"route":                    {func(m *pb.TransferManifest, e *layout.Expect) { m.Route.RouteId = jobID }, 0, "route_id"},
		"baseline":                 {func(m *pb.TransferManifest, e *layout.Expect) { m.Baseline.FreeBytes++ }, 0, "baseline"},
		"requested": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Requested, m.Delta = indices(0, 2, 5), indices(0, 5)
			m.Files = append(m.Files[:4], m.Files[5])
			settle(m)
		}, 0, "requested"},
		"delta":         {func(m *pb.TransferManifest, e *layout.Expect) { m.Delta = indices(0, 5) }, 0, "delta"},
		"totals":        {func(m *pb.TransferManifest, e *layout.Expect) { m.Totals.LogicalBytes++ }, 0, "totals"},
		"order":         {func(m *pb.TransferManifest, e *layout.Expect) { m.Files[0], m.Files[1] = m.Files[1], m.Files[0] }, 0, "files[1].index"},
		"payload name":  {func(m *pb.TransferManifest, e *layout.Expect) { m.Files[0].Payload = "payload/00000001" }, 0, "payload"},
		"artifact name": {func(m *pb.TransferManifest, e *layout.Expect) { m.Artifacts[0].Payload = "payload/00000001" }, 0, "payload"},
		"sent though there": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Files[2].Action, m.Files[2].Payload = transfer, "payload/00000002"
			settle(m)
		}, 0, "files[2].action"},
		"said to be there": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Files[0].Action, m.Files[0].Payload = present, ""
			settle(m)
		}, 0, "files[0].action"},
		"requested, omitted": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Files[2].Action = pb.DeltaAction_DELTA_ACTION_OMIT
			settle(m)
		}, 0, "files[2].action"},
		"tree":            {func(m *pb.TransferManifest, e *layout.Expect) { m.Fingerprints.TreeSha256 = sum("x") }, 0, "tree_sha256"},
		"no tree":         {func(m *pb.TransferManifest, e *layout.Expect) { m.Fingerprints.TreeSha256 = "" }, 0, "tree_sha256"},
		"digest changed":  {func(m *pb.TransferManifest, e *layout.Expect) { m.Files[0].Sha256 = sum("x") }, 0, "tree_sha256"},
		"no info":         {func(m *pb.TransferManifest, e *layout.Expect) { m.Fingerprints.InfoSha256 = "" }, 0, "info_sha256"},
		"info of another": {func(m *pb.TransferManifest, e *layout.Expect) { m.Fingerprints.InfoSha256 = sum("x") }, 0, "info_sha256"},
		"info of nothing": {func(m *pb.TransferManifest, e *layout.Expect) { m.Artifacts = nil }, 0, "info_sha256"},
		"no torrent":      {func(m *pb.TransferManifest, e *layout.Expect) { m.Torrent = nil }, 0, "torrent"},
		"path":            {func(m *pb.TransferManifest, e *layout.Expect) { m.Files[0].Path = "../x" }, pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, "path"},
		"link away":       {func(m *pb.TransferManifest, e *layout.Expect) { m.Files[4].SymlinkTarget = "x/y"; settle(m) }, pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, "symbolic link"},
		"names twice": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Files[0].Path = "t/a"
			settle(m)
			m.Fingerprints.TreeSha256 = ""
		}, pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, "t/a"},
		"names fold": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Files[0].Path = "t/A"
			m.Baseline.FilesystemProfile.CaseSensitive, e.Definition.Baseline.FilesystemProfile.CaseSensitive = false, false
			m.DefinitionSha256 = frame.Digest(e.Definition)
			settle(m)
		}, pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, "t/A"},
		"file too large": {func(m *pb.TransferManifest, e *layout.Expect) {
			m.Baseline.FilesystemProfile.MaxFileBytes, e.Definition.Baseline.FilesystemProfile.MaxFileBytes = 9, 9
			m.DefinitionSha256 = frame.Digest(e.Definition)
		}, pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT, "at most 9"},
	} {
		m, e := manifest(), expect()
		c.change(m, &e)
		if c.code == 0 {
			c.code = manifestInvalid
		}
		err := layout.ValidateManifest(m, e)
		got := beneath.CodeOf(err)
		var rule *pathrule.Error
		if errors.As(err, &rule) {
			got = rule.Code
		}
		if got != c.code || err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.code, c.text)
		}
	}
}

func FuzzManifest(f *testing.F) {
	b, err := frame.Marshal(manifest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(bytes.ReplaceAll(b, []byte("t/b"), []byte("t/../b")))
	f.Add(bytes.ReplaceAll(b, []byte(sum("last")), []byte("")))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &pb.TransferManifest{}
		if v := frame.DecodeFile(data, m); v != nil {
			return
		}
		if layout.ValidateManifest(m, layout.Expect{}) != nil {
			return
		}
		for _, file := range m.Files {
			if err := pathrule.Check(file.Path); err != nil {
				t.Fatal(err)
			}
			if file.Payload != "" && file.Payload != layout.PayloadName(file.Index) {
				t.Fatalf("payload %q of %d", file.Payload, file.Index)
			}
		}
		if m.Fingerprints.GetTreeSha256() != layout.TreeFingerprint(m.Files) {
			t.Fatal("tree fingerprint not recomputed")
		}
	})
}
