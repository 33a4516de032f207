package commands

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// fakeArchive is the archive plane of the fake: what it answers is what a script put into it.
type fakeArchive struct {
	daemons []object
	routes  []object
	jobs    []object
	stories map[string][]object // records of the stream, by job
	preview object              // answer of every preview
	asked   int                 // inventory queries
	answer  object              // of an inventory query
	roots   []object            // of every daemon
	content []object            // resources of every daemon
	planned []object            // files of every preview
}

func newFakeArchive() *fakeArchive {
	return &fakeArchive{stories: map[string][]object{}, answer: object{"query_id": uuid.NewString(), "state": "complete", "revision": 1, "entries": 1, "error": nil}}
}

func (a *fakeArchive) daemon(name string) object {
	d := object{"id": uuid.NewString(), "name": name, "state": "online", "role": "source_and_target", "software": "signalbox", "last_seen_at": now(),
		"remote": "192.0.2.7", "capabilities": []string{}}
	a.daemons = append(a.daemons, d)
	return d
}

// job adds a job from the first daemon to the second.
func (a *fakeArchive) job(id, state string) object {
	peer := func(d object) object { return object{"daemon_id": d["id"], "name": d["name"], "online": true} }
	j := object{"id": id, "operation": "transfer", "title": "shows", "state": state, "source": peer(a.daemons[0]), "target": peer(a.daemons[1]),
		"resource_id": "r-1", "step": "transfer", "step_number": 2, "steps": 5, "created_at": now(), "waiting": nil, "error": nil, "outcome": nil,
		"progress": object{"fraction": 0.5, "overall_fraction": 0.35, "bytes_total": 4 << 20, "bytes_done": 2 << 20, "files_total": 4, "files_done": 2,
			"bytes_per_second": 1 << 20, "moved_at": now()}}
	a.jobs = append(a.jobs, j)
	return j
}

// tell adds a record to the stream of a job: the job with these fields changed, and an entry unless event is empty.
func (a *fakeArchive) tell(id, kind, event string, detail, change object, more bool) {
	j := find(a.jobs, "id", id)
	for k, v := range change {
		j[k] = v
	}
	shown := object{}
	for k, v := range j {
		shown[k] = v
	}
	rec := object{"type": kind, "entry": nil, "job": shown, "more": more}
	if event != "" {
		rec["entry"] = object{"cursor": "", "at": now(), "event": event, "state": j["state"], "daemon": "nas", "command_id": nil, "detail": detail}
	}
	a.stories[id] = append(a.stories[id], rec)
}

func (f *fakeServer) archiveRoutes(locked lockedRoute, handle func(string, func(http.ResponseWriter, *http.Request))) {
	a := f.archive
	one := func(pattern string, list *[]object, what string, h func(http.ResponseWriter, *http.Request, object)) {
		locked(pattern, func(w http.ResponseWriter, r *http.Request) {
			o := find(*list, "id", r.PathValue("id"))
			if o == nil {
				f.notFound(w, what)
				return
			}
			h(w, r, o)
		})
	}
	locked("GET /archive/resolve", func(w http.ResponseWriter, r *http.Request) {
		kind, text := r.URL.Query().Get("kind"), r.URL.Query().Get("text")
		exact, begins := []object{}, []object{}
		for _, o := range map[string][]object{"daemon": a.daemons, "route": a.routes, "job": a.jobs, "resource": a.content}[kind] {
			id, name := asText(o["id"]), asText(o["name"])
			if kind == "resource" {
				id = asText(o["resource_id"])
			}
			switch {
			case id == text || name == text:
				exact = append(exact, object{"id": id, "name": name})
			case len(text) >= 4 && strings.HasPrefix(strings.ReplaceAll(id, "-", ""), strings.ReplaceAll(text, "-", "")) || kind == "resource" && strings.Contains(name, text):
				begins = append(begins, object{"id": id, "name": name})
			}
		}
		if len(exact) == 0 {
			exact = begins
		}
		answer(w, 200, object{"matches": exact})
	})
	locked("GET /daemons", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, a.daemons) })
	locked("GET /daemons/{id}/storage", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, a.roots) })
	locked("GET /daemons/{id}/resources", func(w http.ResponseWriter, r *http.Request) { f.page(w, r, a.content) })
	one("POST /daemons/{id}/inventory", &a.daemons, "daemon", func(w http.ResponseWriter, _ *http.Request, _ object) {
		a.asked++
		answer(w, 200, a.answer)
	})
	locked("GET /routes", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, a.routes) })
	one("POST /routes/{id}/test", &a.routes, "route", func(w http.ResponseWriter, _ *http.Request, r object) { answer(w, 202, r) })
	locked("POST /job-previews", func(w http.ResponseWriter, r *http.Request) {
		a.preview["operation"] = readBody(r)["operation"]
		answer(w, 200, a.preview)
	})
	locked("POST /jobs", func(w http.ResponseWriter, _ *http.Request) { answer(w, 201, a.job(uuid.NewString(), "preflight")) })
	locked("GET /job-previews/{id}", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, a.preview) })
	locked("GET /job-previews/{id}/files", func(w http.ResponseWriter, r *http.Request) { f.page(w, r, a.planned) })
	one("GET /jobs/{id}", &a.jobs, "job", func(w http.ResponseWriter, _ *http.Request, j object) { answer(w, 200, j) })
	one("GET /jobs/{id}/explain", &a.jobs, "job", func(w http.ResponseWriter, _ *http.Request, _ object) {
		answer(w, 200, object{"summary": "The job is held.", "sentences": []string{"Daemon nas lost its database."}, "waits_for": "a person",
			"next_action": "Decide with `jobs resolve`."})
	})
	for verb, state := range map[string]string{"cancel": "cancelling", "retry": "running", "resolve": "completed"} {
		one("POST /jobs/{id}/"+verb, &a.jobs, "job", func(w http.ResponseWriter, r *http.Request, j object) {
			j["state"], j["waiting"], j["said"] = state, nil, readBody(r)
			answer(w, 200, j)
		})
	}
	handle("GET /jobs/{id}/stream", func(w http.ResponseWriter, r *http.Request) {
		f.stream(w, r, func() {}, func() []object { return a.stories[r.PathValue("id")] }, func(object) bool { return true })
	})
}

// steer carries out `fake VERB…` of scripts about the archive plane.
func (a *fakeArchive) steer(args []string) bool {
	switch args[0] {
	case "daemon": // daemon NAME
		a.daemon(args[1])
	case "root": // root ID KIND
		a.roots = append(a.roots, object{"root_id": args[1], "kind": args[2], "free_bytes": 1 << 30, "total_bytes": int64(2 << 30), "writable": true, "same_filesystem_as": []string{}})
	case "resource": // resource ID NAME
		a.content = append(a.content, object{"resource_id": args[1], "name": args[2], "logical_bytes": 1 << 20, "selected_bytes": 1 << 20,
			"completed_selected_bytes": 1 << 19, "file_count": 2, "backend_state": "seeding", "root": "content"})
	case "route": // route NAME STATE [WHY]: from the first daemon to the second
		r := object{"id": uuid.NewString(), "name": args[1], "kind": "shared_directory", "state": args[2], "ready": args[2] == "ready", "not_ready_because": args[3:],
			"source": object{"daemon_id": a.daemons[0]["id"], "daemon": a.daemons[0]["name"]}, "target": object{"daemon_id": a.daemons[1]["id"], "daemon": a.daemons[1]["name"]}}
		a.routes = append(a.routes, r)
	case "inventory-answers": // inventory-answers STATE [CODE MESSAGE RETRYABLE]
		a.answer = object{"query_id": uuid.NewString(), "state": args[1], "entries": 0, "revision": 0, "error": nil}
		if len(args) > 2 {
			retryable, _ := strconv.ParseBool(args[4])
			a.answer["error"] = object{"code": args[2], "message": args[3], "retryable": retryable, "details": object{}}
		}
	case "preview": // preview STATE [CODE MESSAGE RETRYABLE]
		a.preview = object{"id": uuid.NewString(), "operation": "transfer", "state": args[1], "summary": object{"files": 2, "requested": 2, "requested_bytes": 1 << 20,
			"transfer": 2, "transfer_bytes": 1 << 20}, "warnings": []string{"one file is sparse"}, "error": nil}
		if len(args) > 2 {
			retryable, _ := strconv.ParseBool(args[4])
			a.preview["error"] = object{"code": args[2], "message": args[3], "retryable": retryable, "details": object{}}
		}
	case "job": // job ID STATE
		a.job(args[1], args[2])
	case "progress": // progress ID FRACTION
		f, _ := strconv.ParseFloat(args[2], 64)
		a.tell(args[1], "job", "", nil, object{"progress": object{"fraction": f, "overall_fraction": f}}, false)
	case "entry": // entry ID EVENT STATE more|last
		a.tell(args[1], "job", args[2], object{"from": "running", "to": args[3], "because": "the test said so"}, object{"state": args[3]}, args[4] == "more")
	case "wait": // wait ID REASON
		a.tell(args[1], "job", "waiting", object{"reason": args[2]}, object{"state": "waiting", "waiting": object{"reason": args[2], "detail": "", "returns_to": "running"}}, false)
	case "end": // end ID STATE [CODE MESSAGE]
		change := object{"state": args[2], "step": nil}
		if len(args) > 3 {
			change["error"] = object{"code": args[3], "message": args[4], "retryable": false, "details": object{}}
		}
		a.tell(args[1], "end", "", nil, change, false)
	default:
		return false
	}
	return true
}
